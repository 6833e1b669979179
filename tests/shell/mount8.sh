#!/bin/bash
# The program as mount(8)'s helper: mount -t shardfs, -t fuse.shardfs, and a line of fstab.
# Needs root, for mount(8) runs helpers from /sbin only: links are made there and removed again.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

if [[ $(id -u) != 0 ]]; then
    skip "mount(8): not root"
    exit 0
fi

# The links are the whole system's: one run at a time makes them.
kill "$deadline"
echo 'waits until no other run of the tests has them'
exec {lock}</sbin
flock "$lock"
deadline "${SHARDFS_TEST_SECONDS:-600}"

links=()
remove_links() {
    local link
    for link in "${links[@]}"; do
        [[ $(readlink "$link") != "$SHARDFS" ]] || rm "$link"
    done
}
trap 'rc=$?; remove_links; end "$rc"' EXIT

for name in mount.shardfs mount.fuse.shardfs; do
    if [[ -e /sbin/$name ]]; then
        skip "mount(8): there is a /sbin/$name already"
        exit 0
    fi
    links+=("/sbin/$name")
    ln -s "$SHARDFS" "/sbin/$name"
done

python3 "$here/shards.py" array "$TMP/a.zarr" 5
mount_options() { awk -v mp="$1" '$2 == mp { print $1, $3, $4 }' /proc/self/mounts; }
gone() { not_mounted "$1" && no_daemon_of "$1"; }

by_type() {
    new_mount_point
    # mount(8) adds rw by itself: what a helper is not asked for in fstab may not be refused.
    timeout 20 mount -t "$1" "$TMP/a.zarr" "$MP"
    mount_options "$MP"
    [[ $(mount_options "$MP") == "$TMP/a.zarr fuse.shardfs ro,"* ]]
    [[ $(find "$MP/c" -type f | wc -l) == 16 ]]
    umount "$MP"
    within 10 gone "$MP"
}
check "mount -t shardfs" by_type shardfs
check "mount -t fuse.shardfs" by_type fuse.shardfs

with_options() {
    new_mount_point
    timeout 20 mount -t shardfs -o ro,immutable,noatime,noexec,allow_other,uid=1234,umask=027,fsname=named \
        "$TMP/a.zarr" "$MP"
    mount_options "$MP"
    [[ $(mount_options "$MP") == "named fuse.shardfs ro,"*noexec*allow_other* ]]
    [[ $(stat -c %u "$MP/c/0") == 1234 ]]
    umount "$MP"
}
check "mount -o with options of mount(8) and our own" with_options

wrong_option() {
    new_mount_point
    fails_with frobnicate timeout 20 mount -t shardfs -o frobnicate "$TMP/a.zarr" "$MP"
    not_mounted "$MP"
}
check "an unknown option is named" wrong_option

missing_source() {
    new_mount_point
    local rc=0
    timeout 20 mount -t shardfs "$TMP/none.zarr" "$MP" 2>"$TMP/err" || rc=$?
    cat "$TMP/err"
    [[ $rc == 32 ]] && grep -qF "$TMP/none.zarr" "$TMP/err"
}
check "exit code 32 for a missing source" missing_source

fstab() {
    new_mount_point
    # nofail, _netdev, x-...: words in fstab that are not meant for the filesystem.
    echo "$TMP/a.zarr $MP $1 ro,$2 0 0" >"$TMP/fstab"
    timeout 20 mount -T "$TMP/fstab" "$MP"
    cat "$MP/c/0" >/dev/null
    [[ $(findmnt -no FSTYPE "$MP") == fuse.shardfs ]]
    umount "$MP"
    within 10 gone "$MP"
}
check "fstab: type shardfs" fstab shardfs defaults
check "fstab: type fuse.shardfs" fstab fuse.shardfs immutable
check "fstab: nofail, _netdev, noauto, x-options" fstab shardfs nofail,_netdev,noauto,x-systemd.automount

all_of_fstab() {
    new_mount_point
    echo "$TMP/a.zarr $MP shardfs ro 0 0" >"$TMP/fstab"
    timeout 20 mount -a -T "$TMP/fstab"
    is_mounted "$MP"
    # A second time: it is there already.
    timeout 20 mount -a -T "$TMP/fstab"
    [[ $(grep -c " $MP " /proc/self/mounts) == 1 ]]
    umount "$MP"
}
check "mount -a" all_of_fstab

fake() {
    new_mount_point
    timeout 20 mount -f -t shardfs "$TMP/a.zarr" "$MP"
    not_mounted "$MP"
}
check "mount -f mounts nothing" fake

relative_helper() {
    new_mount_point
    timeout 20 /sbin/mount.shardfs "$TMP/a.zarr" "$MP" -o ro
    cat "$MP/c/0" >/dev/null
    umount "$MP"
    # The order that mount.fuse uses as well.
    timeout 20 /sbin/mount.shardfs -o ro "$TMP/a.zarr" "$MP"
    cat "$MP/c/0" >/dev/null
    umount "$MP"
    fails_with "" timeout 20 /sbin/mount.shardfs
}
check "the helper called directly" relative_helper

removed() {
    remove_links
    [[ ! -e /sbin/mount.shardfs && ! -e /sbin/mount.fuse.shardfs ]]
}
check "the links are removed" removed
