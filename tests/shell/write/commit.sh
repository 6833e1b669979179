#!/bin/bash
# When written chunks are durable and visible to others: fsync, the commit interval, -o sync, the end of the daemon,
# files that are mapped into memory.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

fsync_of_directory() {
    fresh $plane --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    both rm "${present[1]}"
    same_files "$MP"
    # Not committed yet.
    fails_with "" in_shards --mounted
    python3 - "$MP/c" <<'PY'
import os
import sys

fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
os.fsync(fd)
PY
    in_shards --mounted
    settled
}
at_once "fsync of a directory: everything below it is in the shards" fsync_of_directory

fsync_of_file() {
    fresh $plane --commit-interval 1000
    both dd if="$data/page" of="${present[0]}" conv=fsync status=none
    in_shards --mounted
    both dd if="$data/medium" of="${absent[0]}" conv=fdatasync status=none
    in_shards --mounted
    both cp "$data/small" "${present[1]}"
    sync "$MP/${present[1]}"
    in_shards --mounted
    both cp "$data/page" "${present[2]}"
    "$SHARDFS" sync "$MP"
    in_shards --mounted
    settled
}
at_once "fsync of a file, shardfs sync" fsync_of_file

# committed_within SECONDS OPTION...: by itself, in one of five mounts; on a busy machine it may take longer.
committed_within() {
    local n is_committed=
    for n in {1..5}; do
        fresh $plane "${@:2}"
        both cp "$data/page" "${present[0]}"
        if within "$1" in_shards --mounted; then is_committed=yes; fi
        unmount_view
        [[ -z $is_committed ]] || return 0
        echo "not by mount $n"
    done
    return 1
}
by_itself() {
    committed_within 3
    committed_within 1 --commit-interval 0.1
    # And not before.
    fresh $plane --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    sleep 2.5
    ! in_shards --mounted || return 1
    unmount_view
}
at_once "what is written is in the shard after the commit interval" by_itself

sync_option() {
    fresh $plane -o sync --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    in_shards --mounted
    both rm "${present[1]}"
    in_shards --mounted
    both mv "${present[2]}" "${present[3]}"
    in_shards --mounted
    settled
}
at_once "-o sync: at every close" sync_option

other_mount() {
    fresh $plane
    local writer=$MP
    mount_view "$source"
    local reader=$MP
    MP=$writer
    both cp "$data/page" "${present[0]}"
    both rm "${present[1]}"
    sync "$MP"
    sleep 1.1
    same_files "$reader"
    unmount_view "$reader"
    settled
}
at_once "a read-only mount beside it follows" other_mount

terminated() {
    fresh $plane --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    both cp "$data/page" "${absent[0]}"
    local daemon
    daemon=$(daemon_of "$MP")
    kill -s TERM "$daemon"
    within 10 no_daemon_of "$MP"
    not_mounted "$MP"
    in_shards
}
at_once "SIGTERM commits" terminated

# SIGKILL: what was durable stays, nothing is torn, and the next mount cleans up.
killed() {
    fresh $plane --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    sync "$MP"
    cp "$data/page" "$MP/${present[1]}"
    kill -s KILL "$(daemon_of "$MP")"
    within 10 no_daemon_of "$MP"
    timeout 30 "$SHARDFS" umount "$MP" || true
    in_shards --mounted
    mount_view "$source" --rw
    settled
}
at_once "SIGKILL: what was durable is there, the next mount leaves nothing behind" killed

# Changes of mapped memory reach the shard, in whatever order file and mapping are closed.
mapped_for_writing() {
    local source=$TMP/mapped.zarr
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw --view zarr3,raw
    python3 - "$MP/raw/waves/c/0/0" <<'PY' || return
import ctypes
import errno
import mmap
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for number, order in enumerate([("msync", "munmap", "close"), ("munmap", "close"), ("close", "munmap"), ("close", "msync", "munmap")]):
    path = f"{sys.argv[1]}/{number}.raw"
    before = open(path, "rb").read()
    file = os.open(path, os.O_RDWR)
    memory = libc.mmap(None, len(before), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if memory == ctypes.c_void_p(-1).value:
        assert ctypes.get_errno() == errno.ENODEV and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 6)
        sys.exit("mapping for writing: not before Linux 6.6")
    ctypes.memset(memory + 1000, number + 1, 3000)
    for step in order:
        if step == "close":
            os.close(file)
        else:
            assert {"msync": lambda: libc.msync(memory, len(before), 4), "munmap": lambda: libc.munmap(memory, len(before))}[step]() == 0
    assert open(path, "rb").read() == before[:1000] + bytes([number + 1]) * 3000 + before[4000:], order
PY
    unmount_view
    "$SHARDFS" verify --decode "$source"
    mount_view "$source" --view raw
    for number in 0 1 2 3; do
        cmp <(tail -c +1001 "$MP/waves/c/0/0/$number.raw" | head -c 3000) \
            <(head -c 3000 /dev/zero | tr '\0' "\\00$((number + 1))")
    done
    unmount_view
}
at_once "mapped for writing: what is changed in memory is in the shard" mapped_for_writing

finish
