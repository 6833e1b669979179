#!/bin/bash
# Files that are passed through, beside the same in an ordinary directory: whoever has one open goes on with
# it, whatever becomes of its name.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
export PYTHONDONTWRITEBYTECODE=1

group() {
    mkdir -p "$1"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$1/zarr.json"
}

group "$TMP/ordinary"
judge "in an ordinary directory: " python3 "$here/open_files.py" "$TMP/ordinary" "$TMP/ordinary"
group "$TMP/written"
mount_view "$TMP/written" --rw
judge "in a writable mount: " python3 "$here/open_files.py" "$MP" "$TMP/written"
group "$TMP/read"
mount_view "$TMP/read"
judge "in a read-only mount: " python3 "$here/open_files.py" "$MP" "$TMP/read"

# A file that is renamed while it is open, from and to each kind of name.
mkdir -p "$TMP/plain/waves/c/0/0" "$TMP/plain/waves/c/1/1"
judge "in an ordinary directory: " python3 "$here/moved_open.py" "$TMP/plain" "$TMP/plain"
"$SHARDFS" create --sample "$TMP/renamed"
mount_view "$TMP/renamed" --rw
judge "in a writable mount: " python3 "$here/moved_open.py" "$MP" "$TMP/renamed"
unmount_view

# What was a chunk, or beside chunks, is whose it was, for whom it was and as old as it was.
keeps_attributes() {
    local source=$TMP/moved shard before
    "$SHARDFS" create --sample "$source"
    shard=$source/waves/c/0/0/0
    chmod 640 "$shard"
    [[ $EUID != 0 ]] || chown 1234:2345 "$shard"
    mount_view "$source" --rw
    touch -d '2020-02-02 02:02:02' "$MP/waves/c/0/0/0"
    before=$(stat -c '%a %u:%g %Y %s' "$MP/waves/c/0/0/0")
    mv "$MP/waves/c/0/0/0" "$MP/waves/chunk.bin"
    [[ $(stat -c '%a %u:%g %Y %s' "$source/waves/chunk.bin") == "$before" ]]
    (umask 077 && echo secret >"$MP/waves/c/0/0/1.partial")
    mv "$MP/waves/c/0/0/1.partial" "$MP/waves/secret"
    [[ $(stat -c %a "$source/waves/secret") == 600 ]]
    # In the place of a file for everybody, too.
    echo old >"$MP/waves/open"
    chmod 644 "$MP/waves/open"
    (umask 077 && echo secret >"$MP/waves/c/0/0/1.partial")
    mv "$MP/waves/c/0/0/1.partial" "$MP/waves/open"
    [[ $(stat -c %a "$source/waves/open") == 600 && $(<"$source/waves/open") == secret ]]
    unmount_view
}
check "what is renamed from among the chunks keeps its owner, permissions and date" keeps_attributes

# mv copies it, and removes the name: the others stay what they were, also for who has the file open.
hard_linked() {
    local source=$TMP/linked
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw
    head -c 4096 /dev/urandom >"$MP/one"
    cp "$MP/one" "$TMP/before"
    ln "$MP/one" "$MP/two"
    exec 5<"$MP/one"
    mv "$MP/two" "$MP/waves/c/0/0/0"
    cp "$TMP/renamed/zarr.json" "$MP/one"
    cmp "$TMP/before" "$MP/waves/c/0/0/0"
    "$SHARDFS" sync "$MP"
    exec 5<&-
    sleep 1.2
    cmp "$TMP/before" "$MP/waves/c/0/0/0"
    cmp "$TMP/renamed/zarr.json" "$source/one"
    [[ ! -e $source/two ]]
    unmount_view
}
check "a file with other names that is moved to a chunk leaves them alone" hard_linked
