#!/bin/bash
# Attributes of chunks: times, modes, owners, sizes, inodes and link counts.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

touched() {
    fresh $plane
    both touch -d '2001-02-03 04:05:06.789' "${present[0]}"
    both touch "${absent[0]}"
    both touch -c "${absent[1]}"
    [[ $(stat -c %y "$MP/${present[0]}") == "2001-02-03 04:05:06.789"* ]]
    both chmod 644 "${present[1]}"
    both chmod 600 "${present[1]}" "${absent[0]}"
    both chown "$(id -u):$(id -g)" "${present[1]}" "${absent[0]}"
    if [[ $(id -u) == 0 ]]; then
        fails_with "not permitted" chown 1234 "$MP/${present[1]}"
    fi
    # Neither is a change of the content.
    both cat "${present[0]}" "${present[1]}"
    sync "$MP"
    sleep 1.1
    [[ $(stat -c %y "$MP/${present[0]}") == "2001-02-03 04:05:06.789"* ]]
    settled
}
at_once "touch, touch -d, chmod, chown to the same owner" touched

# A commit changes neither the size nor the inode nor the times of a chunk.
attributes() {
    fresh $plane --commit-interval 1000
    local chunk=$MP/${present[0]} sibling=$MP/${present[1]} before sibling_before
    sibling_before=$(stat -c '%i %s %y %a' "$sibling")
    sleep 0.1
    cp "$data/page" "$chunk"
    before=$(stat -c '%i %s %y %a' "$chunk")
    [[ $(stat -c '%i %s %y %a' "$sibling") == "$sibling_before" ]]
    for _ in 1 2; do
        sync "$MP"
        [[ $(stat -c '%i %s %y %a' "$chunk") == "$before" ]]
        # And once the kernel's cache of attributes has expired.
        sleep 1.1
        [[ $(stat -c '%i %s %y %a' "$chunk") == "$before" ]]
        [[ $(stat -c '%i %s %y %a' "$sibling") == "$sibling_before" ]]
        # Another commit of the same shard.
        echo 1 >"$MP/${present[2]}"
    done
    unmount_view
}
at_once "size, inode, mtime and mode stay as they are at a commit, those of other chunks too" attributes

links() {
    fresh $plane
    python3 - "$MP/${present[0]}" <<'PY'
import os
import sys

fd = os.open(sys.argv[1], os.O_RDWR)
assert os.fstat(fd).st_nlink == 1
os.unlink(sys.argv[1])
assert os.fstat(fd).st_nlink == 0, os.fstat(fd).st_nlink
PY
    unmount_view
}
at_once "an open file that was removed has no links" links

# The file of a shard or of a document is replaced by another one.
rights_of_what_is_replaced() {
    local policy=$1 shard file
    local -a files
    fresh $plane
    unmount_view
    shard=$(find "$source/c" -type f | sort | head -n 1)
    files=("$shard" "$source/zarr.json")
    for file in "${files[@]}"; do
        chmod 640 "$file"
        setfacl -m u:daemon:rw,g::- "$file"
        setfattr -n user.origin -v "ours" "$file"
    done
    # What is made there has another list.
    setfacl -d -m u:games:rwx "$source" "$source/c" "${shard%/*}"
    rights() { getfacl -cp "${files[@]}" && getfattr --absolute-names -d "${files[@]}" && stat -c %A "${files[@]}"; }
    rights >"$work/before"
    mount_view "$source" --rw --log-file "$log" --update "$policy"
    local name=${shard#"$source"/}
    for name in "${present[@]}"; do
        cp "$data/page" "$MP/$name"
    done
    python3 - "$MP/zarr.json" <<'PY'
import json
import sys

document = json.load(open(sys.argv[1]))
document["attributes"] = {"new": True}
text = json.dumps(document)
with open(sys.argv[1], "w") as file:
    file.write(text)
PY
    unmount_view
    grep -q '"new"' "$source/zarr.json"
    rights | diff "$work/before" -
}

# The document goes before its directory, which cannot be removed: it is a mount point.
rights_of_what_is_put_back() {
    local group document
    fresh $plane
    unmount_view
    group=$work/group document=$work/group/array/zarr.json
    mkdir -p "$group"
    mv "$source" "$group/array"
    mount --bind "$group/array" "$group/array"
    # shellcheck disable=SC2064 # the name is known now
    trap "umount -l '$group/array'" EXIT
    chmod 640 "$document"
    setfacl -m u:games:rw,g::- "$document"
    setfattr -n user.origin -v "ours" "$document"
    rights() { getfacl -cp "$document" && getfattr --absolute-names -d "$document" && stat -c '%A %U %y' "$document"; }
    rights >"$work/before"
    mount_view "$group" --rw --log-file "$log"
    rm -r "$MP/array/c" "$MP/array/zarr.json"
    if rmdir "$MP/array"; then return 1; fi
    rights | diff "$work/before" -
    unmount_view
}
if setfacl -m u:daemon:r "$TMP" 2>/dev/null; then
    if [[ $(id -u) == 0 ]]; then
        at_once "a document that is put back keeps its access control list and attributes" rights_of_what_is_put_back
    fi
    for policy in rewrite auto; do
        at_once "what is replaced keeps its access control list and attributes ($policy)" rights_of_what_is_replaced $policy
    done
else
    skip "access control lists: the filesystem has none"
fi

finish
