#!/bin/bash
# Mounts within their own source: a daemon must never wait for itself.

# A deadlock must not stop the tests.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-600}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

# new_source: sets SRC, a group with an array in it, and an empty directory "mp"
new_source() {
    SRC=$(mktemp -d "$TMP/source.XXXXXX")
    echo '{"zarr_format": 3, "node_type": "group"}' >"$SRC/zarr.json"
    python3 "$here/shards.py" array "$SRC/a" 5
    mkdir "$SRC/mp"
}

# own_mount SOURCE MOUNTPOINT [OPTION...]
own_mount() {
    local source=$1 mp=$2
    shift 2
    echo "$mp" >>"$TMP/mounts"
    timeout 30 "$SHARDFS" mount "$@" "$source" "$mp" </dev/null
}

# walk DIRECTORY: everything in it can be looked at.  What hangs is ended by aborting all mounts.
walk() {
    local job rc=0
    # stat of each, reads, and the listing itself; in the background, for a hanging process cannot be killed.
    (find "$1" -printf '%p %m %s\n' && find "$1" -type f -exec cat {} + | sha256sum) >"$TMP/walk" 2>&1 &
    job=$!
    ended() { ! kill -0 "$job" 2>/dev/null; }
    if ! within 60 ended; then
        abort_mounts
        echo "it hangs"
        return 1
    fi
    wait "$job" || rc=$?
    cat "$TMP/walk"
    return "$rc"
}

chunks_in() { find "$1" -path "*/c/*" -type f | wc -l; }

is_empty_directory() { [[ -d $1 && -z $(ls -A "$1") ]]; }

# --- read-only and writable ------------------------------------------------------------------------

inside_itself() {
    new_source
    own_mount "$SRC" "$SRC/mp" "$@"
    walk "$SRC/mp"
    is_empty_directory "$SRC/mp/mp"
    [[ $(chunks_in "$SRC/mp/a") == 16 && $(chunks_in "$SRC/mp") == 16 ]]
    fails_with "No such file" cat "$SRC/mp/mp/zarr.json"
    unmount_view "$SRC/mp"
}
check "a mount point in the source is an empty directory in the mount" inside_itself
check "and in a writable one" inside_itself --rw

views_of_itself() {
    new_source
    own_mount "$SRC" "$SRC/mp" --view zarr3,npy,flat
    walk "$SRC/mp"
    is_empty_directory "$SRC/mp/zarr3/mp"
    is_empty_directory "$SRC/mp/npy/mp"
    [[ $(chunks_in "$SRC/mp") == 32 ]]
    unmount_view "$SRC/mp"
}
check "and in several views" views_of_itself

writes_into_itself() {
    new_source
    own_mount "$SRC" "$SRC/mp" --rw
    fails_with "" timeout 20 touch "$SRC/mp/mp/new"
    fails_with "" timeout 20 mkdir "$SRC/mp/mp/new"
    fails_with "" timeout 20 chmod 700 "$SRC/mp/mp"
    fails_with "" timeout 20 touch "$SRC/mp/mp"
    fails_with "" timeout 20 rmdir "$SRC/mp/mp"
    fails_with "" timeout 20 mv "$SRC/mp/mp" "$SRC/mp/other"
    fails_with "" timeout 20 mv "$SRC/mp/zarr.json" "$SRC/mp/mp/zarr.json"
    timeout 20 cp "$SRC/mp/a/c/0" "$SRC/mp/a/c/1"
    timeout 20 "$SHARDFS" sync "$SRC/mp"
    unmount_view "$SRC/mp"
    is_empty_directory "$SRC/mp"
}
check "what is written to it is refused" writes_into_itself

below_a_shard_directory() {
    new_source
    mkdir "$SRC/a/c/mp"
    own_mount "$SRC/a" "$SRC/a/c/mp"
    walk "$SRC/a/c/mp"
    unmount_view "$SRC/a/c/mp"
}
check "a mount point among the shards" below_a_shard_directory

on_itself() {
    new_source
    own_mount "$SRC" "$SRC"
    walk "$SRC"
    [[ $(chunks_in "$SRC") == 16 ]]
    unmount_view "$SRC"
}
check "a source mounted on itself shows its chunks" on_itself

# Absent chunks would be read as fill values.
hidden_by_another() {
    local first
    new_source
    mount_view "$SRC"
    first=$MP
    cat "$first/a/c/0" >/dev/null
    own_mount "$SRC/a" "$SRC/a"
    sleep 1.2
    fails_with "Input/output error" cat "$first/a/c/1"
    unmount_view "$SRC/a"
    sleep 1.2
    cat "$first/a/c/1" >/dev/null
    unmount_view "$first"
}
check "an array that another mount hides is an error, not absent" hidden_by_another

on_an_array_of_itself() {
    new_source
    own_mount "$SRC" "$SRC/a"
    walk "$SRC/a"
    is_empty_directory "$SRC/a/a"
    unmount_view "$SRC/a"
}
check "a source mounted on one of its arrays" on_an_array_of_itself

# --- several mounts ----------------------------------------------------------------------------------

twice() {
    new_source
    mkdir "$SRC/mp2"
    own_mount "$SRC" "$SRC/mp"
    own_mount "$SRC" "$SRC/mp2"
    walk "$SRC/mp2"
    walk "$SRC/mp"
    walk "$SRC"
    is_empty_directory "$SRC/mp/mp2"
    is_empty_directory "$SRC/mp2/mp"
    unmount_view "$SRC/mp"
    unmount_view "$SRC/mp2"
}
check "a source mounted twice in itself" twice

in_each_other() {
    new_source
    local first=$SRC
    new_source
    own_mount "$first" "$SRC/mp"
    own_mount "$SRC" "$first/mp"
    walk "$SRC/mp"
    walk "$first/mp"
    is_empty_directory "$SRC/mp/mp"
    # The one that was there before is shown, but not what would lead back.
    [[ $(chunks_in "$first/mp") == 32 ]]
    is_empty_directory "$first/mp/mp/mp"
    unmount_view "$first/mp"
    unmount_view "$SRC/mp"
}
check "two mounts in each other's source" in_each_other

part_in_whole() {
    new_source
    own_mount "$SRC/a" "$SRC/a"
    mount_view "$SRC"
    walk "$MP"
    [[ $(chunks_in "$MP") == 16 ]]
    unmount_view
    unmount_view "$SRC/a"
}
check "an array mounted on itself, then the source around it" part_in_whole

fsname_hides_nothing() {
    new_source
    own_mount "$SRC" "$SRC/mp" -o fsname=other
    walk "$SRC/mp"
    is_empty_directory "$SRC/mp/mp"
    unmount_view "$SRC/mp"
}
check "a mount with another name" fsname_hides_nothing

# --- made afterwards ---------------------------------------------------------------------------------

bound() {
    new_source
    mount_view "$SRC"
    ls "$MP" >/dev/null
    mount --bind "$MP" "$SRC/mp"
    echo "$SRC/mp" >>"$TMP/mounts"
    walk "$MP"
    walk "$SRC"
    is_empty_directory "$MP/mp"
    umount "$SRC/mp"
    mount --bind "$MP/a" "$SRC/mp"
    walk "$MP"
    is_empty_directory "$MP/mp"
    # Onto a file that has been read.
    cat "$MP/a/zarr.json" >/dev/null
    echo "$SRC/a/zarr.json" >>"$TMP/mounts"
    mount --bind "$MP/a/zarr.json" "$SRC/a/zarr.json"
    walk "$MP" || true
    grep -q "it hangs" "$TMP/walk" && return 1
    umount "$SRC/a/zarr.json"
    umount "$SRC/mp"
    unmount_view
}
moved() {
    new_source
    mkdir "$TMP/private"
    mount -t tmpfs none "$TMP/private"
    echo "$TMP/private" >>"$TMP/mounts"
    mount --make-private "$TMP/private"
    mkdir "$TMP/private/at"
    own_mount "$SRC" "$TMP/private/at"
    ls "$TMP/private/at" >/dev/null
    mount --move "$TMP/private/at" "$SRC/mp"
    echo "$SRC/mp" >>"$TMP/mounts"
    walk "$SRC/mp"
    is_empty_directory "$SRC/mp/mp"
    unmount_view "$SRC/mp"
    umount "$TMP/private"
}
others() {
    new_source
    mount_view "$SRC"
    mount -t tmpfs none "$SRC/mp"
    echo "$SRC/mp" >>"$TMP/mounts"
    mkdir "$SRC/mp/below"
    echo hello >"$SRC/mp/below/file"
    ln -s mp/below/file "$SRC/link"
    ln -s ../zarr.json "$SRC/mp/up"
    ln -s ../../outside "$SRC/mp/out"
    echo file >"$SRC/mp/one"
    touch "$SRC/bound"
    mount --bind "$SRC/mp/one" "$SRC/bound"
    echo "$SRC/bound" >>"$TMP/mounts"
    [[ $(cat "$MP/mp/below/file") == hello && $(cat "$MP/link") == hello ]]
    [[ $(cat "$MP/bound") == file ]]
    cmp "$MP/mp/up" "$SRC/zarr.json"
    fails_with "" cat "$MP/mp/out"
    walk "$MP" || true
    umount "$SRC/bound"
    python3 "$here/shards.py" array "$SRC/mp/b" 6
    [[ $(chunks_in "$MP/mp/b") == 16 ]]
    unmount_view
    umount "$SRC/mp"
}
others_writable() {
    new_source
    mount -t tmpfs none "$SRC/mp"
    echo "$SRC/mp" >>"$TMP/mounts"
    python3 "$here/shards.py" array "$SRC/mp/b" 6
    mount_view "$SRC" --rw
    cp "$MP/a/c/1" "$MP/mp/b/c/1"
    echo new >"$MP/mp/new"
    mv "$MP/mp/new" "$MP/mp/newer"
    chmod 600 "$MP/mp/newer"
    rm "$MP/mp/newer"
    unmount_view
    "$SHARDFS" verify "$SRC/mp/b"
    mount_view "$SRC"
    cmp "$MP/a/c/1" "$MP/mp/b/c/1"
    unmount_view
    umount "$SRC/mp"
}
if [[ $(id -u) == 0 ]]; then
    check "a mount that is bound into its source later" bound
    check "a mount that is moved into its source" moved
    check "other filesystems in the source are shown" others
    check "and written to" others_writable
fi

# --- commands ----------------------------------------------------------------------------------------

commands() {
    new_source
    own_mount "$SRC" "$SRC/mp"
    timeout 30 "$SHARDFS" ls "$SRC" >"$TMP/list"
    [[ $(wc -l <"$TMP/list") == 16 ]]
    timeout 30 "$SHARDFS" verify "$SRC" | grep "^1 array, "
    timeout 30 "$SHARDFS" info "$SRC"
    timeout 30 "$SHARDFS" unpack "$SRC" "$SRC.out"
    [[ $(chunks_in "$SRC.out") == 16 ]]
    timeout 30 "$SHARDFS" pack "$SRC.out" "$SRC.back" --shard 16384
    timeout 30 "$SHARDFS" repack "$SRC" || true
    timeout 30 "$SHARDFS" recover "$SRC"
    unmount_view "$SRC/mp"
}
check "commands do not see the source once more in its own mount" commands
