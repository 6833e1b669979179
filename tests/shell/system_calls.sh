#!/bin/bash
# System calls on files that are passed through: in a writable mount and in a plain directory they end alike.
# docs/POSIX.md names what does not.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
calls=$repo/tests/shell/system_calls.py
export PYTHONDONTWRITEBYTECODE=1

# alike USERS OPTION...: of a mount with these options.
alike() {
    local users=$1 source
    shift
    source=$(mktemp -d "$TMP/source.XXXXXX")
    mkdir "$source/here" "$source.twin"
    chmod 755 "$source" "$source.twin"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
    mount_view "$source" --rw "$@"
    judge "$users: " python3 "$calls" "$MP/here" "$source.twin" "$users"
    unmount_view
}

chmod 755 "$TMP"
if [[ $EUID == 0 ]]; then
    alike all-users -o allow_other
fi
alike one-user
