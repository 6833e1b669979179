#!/bin/bash
# Chunks are renamed and linked: into the array, out of it, within it.

# shellcheck disable=SC2016 source=lib.sh
. "$(dirname "$0")/lib.sh"

moved() {
    fresh $plane
    # In, over, out.
    script 'cp "$0" "$PWD.in"; mv "$PWD.in" "$1"; cp "$0" "$PWD.in"; mv "$PWD.in" "$2"; mv "$3" "$PWD.out"' \
        "$data/medium" "${present[0]}" "${absent[0]}" "${present[1]}"
    cmp "$MP.out" "$want.out"
    # Within a directory and from one to another, onto others and onto new ones.
    both mv "${present[2]}" "${present[3]}"
    both mv "${present[4]}" "${absent[1]}"
    both mv -n "${present[5]}" "${present[6]}"
    both mv -n "${present[7]}" "${absent[2]}"
    both mv "${present[8]}" "${absent[-1]}"
    both mv "${present[-1]}" "${present[9]}"
    both mv "${present[10]}" "${present[10]}"
    both mv "${present[-2]}" "${present[-3]}" c/0/
    settled
}
at_once "mv in, out, within and across directories, mv -n" moved

# rename(2) with its flags; what is read at once and after a commit is what was renamed.
renamed() {
    fresh $plane
    cat >"$work/renames.py" <<'PY'
import ctypes
import errno
import os
import sys

NOREPLACE = 1
libc = ctypes.CDLL(None, use_errno=True)


def rename(a, b, flags):
    done = libc.renameat2(-100, a.encode(), -100, b.encode(), flags)
    print(a, b, flags, errno.errorcode[ctypes.get_errno()] if done else "done")


chunk, other, absent, absent_too = sys.argv[1:]
rename(chunk, other, NOREPLACE)
rename(chunk, absent, NOREPLACE)
rename(chunk, other, 0)
rename(absent, chunk, 0)
rename(chunk, os.path.dirname(chunk), 0)
with open(absent + ".tmp", "wb") as f:
    f.write(b"published")
rename(absent + ".tmp", other, NOREPLACE)
rename(absent + ".tmp", absent_too, NOREPLACE)
PY
    both python3 "$work/renames.py" "${present[0]}" "${present[1]}" "${absent[0]}" "${absent[1]}"
    settled
}
at_once "renameat2 with RENAME_NOREPLACE" renamed

committed_after_mv() {
    fresh $plane
    # The kernel has both in its caches.
    both cat "${present[0]}" "${present[1]}"
    both mv "${present[0]}" "${present[1]}"
    sync "$MP"
    both cat "${present[1]}"
    both cp "$data/small" "${present[1]}"
    sync "$MP"
    both cat "${present[0]}"
    both cp "$data/page" "${present[0]}"
    both cat "${present[1]}"
    settled
}
at_once "a chunk moved onto another is there before, at and after the commit" committed_after_mv

linked() {
    fresh $plane
    script 'cp "$0" "$1.tmp"; ln "$1.tmp" "$1"; rm "$1.tmp"' "$data/page" "${absent[0]}"
    # It exists already: an error is reported, and it stays as it is.
    both bash -c 'cp "$0" "$1.tmp"; ln "$1.tmp" "$1"; rm "$1.tmp"' "$data/page" "${present[0]}"
    # From outside a link is no way in; ln says so and nothing happens.
    fails_with "cross-device" ln "$data/page" "$MP/${absent[1]}"
    settled
}
at_once "link and unlink as a publication" linked

# A reader that has a chunk open never sees another file that takes its place.
open_while_replaced() {
    local top
    top=$(mktemp -d "$TMP/work.XXXXXX")/a.zarr
    python3 "$here/shards.py" array "$top" 1 --shards 2 --chunks 4 --bytes 524288
    mount_view "$top" --rw --commit-interval 1000 "$@"
    python3 - "$SHARDFS" "$MP" "${suffix:-}" <<'PY'
import errno
import os
import subprocess
import sys

program, mount, suffix = sys.argv[1:]


def renamed_over(path, content):
    with open(path + ".tmp", "wb") as f:
        f.write(content)
    os.rename(path + ".tmp", path)


def created_anew(path, content):
    os.unlink(path)
    with open(path, "wb") as f:
        f.write(content)


n = 0
for replace in renamed_over, created_anew:
    for commit in False, True:
        path = f"{mount}/c/{n}{suffix}"
        n += 1
        with open(path, "rb") as f:
            before = f.read()
        os.posix_fadvise((old := os.open(path, os.O_RDONLY)), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(old, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(old, 4096, 0) == before[:4096]
        after = before[:-524288] + bytes([9]) * 524288
        replace(path, after)
        if commit:
            subprocess.run([program, "sync", mount], check=True)
        with open(path, "rb") as f:
            assert f.read() == after
        for at in (65536, 0):
            try:
                assert os.pread(old, 4096, at) == before[at : at + 4096], (replace, commit, at)
            except OSError as error:
                assert error.errno == errno.EIO, error
        with open(path, "rb") as f:
            assert f.read() == after
PY
    unmount_view
}
at_once "a reader never sees the file that takes the place of a chunk that it has open" open_while_replaced
suffix=.npy at_once "the same of decoded chunks" open_while_replaced --view npy

# The kernel takes a rename that reports an error for one that was not done.
failed_sync() {
    local top work old
    top=$(mktemp -d "$TMP/work.XXXXXX") old=${present[0]}
    cp -r "$TMP/made/$plane" "$top/a"
    mkdir "$top/loose"
    mount_view "$top" --rw -o sync --commit-interval 1000
    cmp "$MP/a/$old" "$TMP/made/$plane.files/$old"
    # No commit succeeds.
    echo >"$top/a/.shardfs"
    fails_with "" mv "$MP/a/$old" "$MP/loose/was"
    fails_with "" cp "$data/page" "$MP/a/$old"
    fails_with "" mv "$MP/a/${present[1]}" "$MP/a/${present[2]}"
    fails_with "" cp "$data/small" "$MP/a/${present[1]}"
    rm "$top/a/.shardfs"
    sync "$MP"
    unmount_view
    cmp "$top/loose/was" "$TMP/made/$plane.files/$old"
    mount_view "$top"
    cmp "$MP/a/$old" "$data/page"
    cmp "$MP/a/${present[1]}" "$data/small"
    cmp "$MP/a/${present[2]}" "$TMP/made/$plane.files/${present[1]}"
    unmount_view
}
at_once "what is written after a rename that could not be committed goes to the name that it was written to" failed_sync

finish
