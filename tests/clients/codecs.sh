#!/bin/bash
# Encoded chunks with padding, further members or anything else behind the stream: read where numcodecs reads them,
# an error where it refuses them.
#
#     tests/clients/codecs.sh
#
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
checker() { "${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python" "$here/codecs_check.py" "$@"; }

checker make "$TMP/made"
mount_view "$TMP/made" --view raw --log-file "$TMP/log"
judge "" checker compare "$TMP/made" "$MP"
check "unmount" unmount_view "$MP"
