#!/bin/bash
# The source cannot be written: a damaged shard, no space, a read-only filesystem.

# shellcheck disable=SC2016 source=lib.sh
. "$(dirname "$0")/lib.sh"

damaged() {
    fresh $plane
    unmount_view
    # The last byte of the index: its checksum is wrong.
    printf 'x' | dd of="$source/c/0/0" bs=1 seek=$(($(stat -c %s "$source/c/0/0") - 1)) conv=notrunc status=none
    cp "$source/c/0/0" "$work/damaged"
    mount_view "$source" --rw --log-file "$log"
    fails_with "Input/output error" cp "$data/page" "$MP/c/0/0"
    fails_with "Input/output error" rm "$MP/c/1/3"
    fails_with "Input/output error" truncate -s 1 "$MP/c/0/1"
    cp "$data/page" "$MP/c/0/tmp"
    fails_with "Input/output error" mv "$MP/c/0/tmp" "$MP/c/0/2"
    rm "$MP/c/0/tmp"
    # Other shards are written.
    cp "$data/page" "$MP/c/0/4"
    sync "$MP"
    cmp "$data/page" "$MP/c/0/4"
    unmount_view
    cmp "$source/c/0/0" "$work/damaged"
    grep -q 'c/0/0: .*`shardfs recover --scan`' "$log"
}
at_once "a chunk of a damaged shard is not written: EIO, and the shard stays as it is" damaged

small_filesystem() {
    small=$(mktemp -d "$TMP/small.XXXXXX")
    echo "$small" >>"$TMP/mounts"
    case $1 in
    tmpfs) mount -t tmpfs -o size=1m none "$small" ;;
    ext4)
        truncate -s 2M "$small.image"
        mkfs.ext4 -q -m 0 "$small.image"
        mount -o loop "$small.image" "$small"
        ;;
    esac
    fresh $plane
    unmount_view
    mv "$source" "$small/a.zarr"
    source=$small/a.zarr
}

no_space() {
    small_filesystem "$1"
    mount_view "$source" --rw --log-file "$log" --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    sync "$MP"
    cp "$TMP/data/large" "$small/filler" 2>/dev/null || true
    fails_with "No space left" dd if="$data/medium" of="$MP/${present[1]}" conv=fsync status=none
    # Nothing that was committed is lost; what was not is still there, and committed when there is space.
    in_shards --mounted
    cmp "$data/medium" "$MP/${present[1]}"
    fails_with "No space left" sync "$MP"
    cp "$data/medium" "$want/${present[1]}"
    rm "$small/filler"
    sync "$MP"
    in_shards --mounted
    settled
    umount "$small"
}

no_space_at_end() {
    small_filesystem "$1"
    mount_view "$source" --rw --log-file "$log" --commit-interval 1000
    cp "$TMP/data/large" "$small/filler" 2>/dev/null || true
    cp "$data/medium" "$MP/${present[1]}"
    : >"$log"
    # umount reports it, and does not hang.
    fails_with "${present[1]}" "$SHARDFS" umount "$MP"
    within 10 no_daemon_of "$MP"
    in_shards --mounted
    local file
    file=$(saved "${present[1]}")
    cmp "$file" "$data/medium"
    rm "$small/filler"
    mount_view "$source" --rw
    settled
    umount "$small"
}

read_only_source() {
    fresh $plane
    unmount_view
    mkdir "$work/ro"
    echo "$work/ro" >>"$TMP/mounts"
    mount --bind "$source" "$work/ro"
    mount -o remount,ro,bind "$work/ro"
    # Either the mount is refused, or writing fails: no write succeeds that would be lost.
    if mount_view "$work/ro" --rw --log-file "$log"; then
        fails_with "Read-only file system" dd if="$data/page" of="$MP/${present[0]}" conv=fsync status=none
        fails_with "Read-only file system" cp "$data/page" "$MP/notes"
        timeout 30 "$SHARDFS" umount "$MP" || true
        within 10 no_daemon_of "$MP"
        local file
        file=$(saved "${present[0]}")
        cmp "$file" "$data/page"
    fi
    umount "$work/ro"
    in_shards
}

if [[ $(id -u) == 0 ]]; then
    for filesystem in tmpfs ext4; do
        at_once "no space on $filesystem: told at fsync, nothing is lost, committed when there is space" \
            no_space $filesystem
        at_once "no space on $filesystem until the end: saved as plain files, umount and the log say so" \
            no_space_at_end $filesystem
    done
    at_once "a source on a read-only filesystem" read_only_source
else
    skip "no space, read-only source: only root can mount filesystems"
fi

finish
