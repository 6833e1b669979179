#!/usr/bin/env bash
# A file that another program has made longer is read as it is by whoever opens it, for reading or writing, though
# the kernel has cached its length for a second.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

array() { "$SHARDFS" create --shape 32,32 --dtype uint8 --chunk 4,4 --shard 16,16 "$1" >/dev/null; }

# store FILE TEXT: makes it the durable contents of a chunk
store() {
    mkdir -p "$(dirname "$1")"
    printf '%s' "$2" >"$1"
    sync "$1"
}

# reads FILE TEXT FLAGS: an open with these flags, a stat, a read and a mapping show this text
reads() {
    python3 - "$@" <<'PY'
import mmap
import os
import sys

path, text, flags = sys.argv[1], sys.argv[2].encode(), getattr(os, sys.argv[3])
fd = os.open(path, flags)
got = os.read(fd, 1000)
assert got == text, f"read {got}"
assert os.fstat(fd).st_size == len(text), os.fstat(fd).st_size
with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
    assert mapped[:] == text, f"mapped {mapped[:]}"
os.close(fd)
PY
}

# changes FLAGS: of a chunk, by another mount; the kernel has known the name since before
changes() {
    local source=$TMP/array.$RANDOM a
    array "$source"
    mount_view "$source" --rw
    a=$MP
    mount_view "$source" --rw
    store "$a/c/0/0" OLD
    settle
    [[ $(stat -c %s "$MP/c/0/0") == 3 ]]
    store "$a/c/0/0" 'NEW and longer'
    reads "$MP/c/0/0" 'NEW and longer' "$1"
    # Also after a listing, and the other way round.
    settle
    [[ $(find "$MP/c" -type f -printf %s) == 14 ]]
    store "$a/c/0/0" less
    reads "$MP/c/0/0" less "$1"
    unmount_view "$a"
    unmount_view
}
for flags in O_RDONLY O_RDWR; do
    check "a chunk that another mount has made longer is read as a whole ($flags)" changes $flags
done

rewritten() {
    local source=$TMP/rewritten
    array "$source"
    mount_view "$source" --rw
    local a=$MP
    mount_view "$source" --rw
    store "$a/c/0/0" OLD
    settle
    cat "$MP/c/0/0"
    store "$a/c/0/0" 'NEW and longer'
    python3 - "$MP/c/0/0" <<'PY'
import sys

with open(sys.argv[1], "r+b") as f:
    content = f.read()
    f.seek(0)
    f.write(b"X" + content[1:])
    f.truncate()
PY
    "$SHARDFS" sync "$MP"
    unmount_view "$a"
    unmount_view
    mount_view "$source"
    [[ $(<"$MP/c/0/0") == 'XEW and longer' ]]
    unmount_view
}
check "what is read, changed and written back is not cut off" rewritten

by_view() {
    local source=$TMP/by_view
    array "$source"
    mount_view "$source" --rw --view zarr3,zarr2
    store "$MP/zarr3/c/0/0" OLD
    settle
    [[ $(<"$MP/zarr2/0/0") == OLD ]]
    store "$MP/zarr3/c/0/0" 'NEW and longer'
    reads "$MP/zarr2/0/0" 'NEW and longer' O_RDWR
    unmount_view
}
check "a chunk that another view has made longer is read as a whole" by_view

# passed FLAGS: of a file that is passed through
passed() {
    local source=$TMP/passed.$RANDOM
    array "$source"
    printf OLD >"$source/note"
    mount_view "$source" --rw
    [[ $(<"$MP/note") == OLD ]]
    printf ' and longer' >>"$source/note"
    reads "$MP/note" 'OLD and longer' "$1"
    settle
    [[ $(stat -c %s "$MP/note") == 14 ]]
    printf 'another file, longer still' >"$source/new"
    mv "$source/new" "$source/note"
    reads "$MP/note" 'another file, longer still' "$1"
    unmount_view
}
for flags in O_RDONLY O_RDWR; do
    check "a file that is passed through and has grown is read as a whole ($flags)" passed $flags
done

# versions FLAGS first|later: a handle while another mount replaces the chunk, which some process has open for writing
versions() {
    local source=$TMP/versions.$RANDOM a nbytes=$((4 << 20))
    "$SHARDFS" create --shape $((2 * nbytes)) --dtype uint8 --chunk $nbytes --shard $((2 * nbytes)) "$source" >/dev/null
    mount_view "$source" --rw
    a=$MP
    mount_view "$source" --rw
    mkdir -p "$a/c"
    head -c $nbytes /dev/zero | tr '\0' o >"$a/c/0"
    sync "$a/c/0"
    settle
    python3 - "$MP/c/0" "$a/c/0" $nbytes "$@" <<'PY'
import errno
import os
import sys

path, other, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
flags, is_first = getattr(os, sys.argv[4]), sys.argv[5] == "first"
writer = os.open(path, os.O_RDWR) if is_first else None
fd = os.open(path, flags)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
assert os.pread(fd, 4096, 0) == b"o" * 4096
writer = writer or os.open(path, os.O_RDWR)
with open(other, "r+b") as f:
    f.write(b"N" * nbytes)
    f.flush()
    os.fsync(f.fileno())
seen = set()
for call in [lambda at=at: seen.update(os.pread(fd, 65536, at)) for at in range(0, nbytes, 65536)]:
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EIO, error
assert seen <= set(b"o"), seen
try:
    os.pwrite(writer, b"x", 100)
    raise AssertionError("written")
except OSError as error:
    assert error.errno == errno.ESTALE, error
os.close(fd)
os.close(writer)
with open(path, "rb") as f:
    assert f.read() == b"N" * nbytes
PY
    unmount_view "$a"
    unmount_view
}
check "a handle that is open for writing never reads two versions of a chunk" versions O_RDWR first
check "nor does one for reading beside it" versions O_RDONLY first
check "nor does one for reading that was there before" versions O_RDONLY later
