#!/bin/bash
# Writing through a mount, with everyday tools and the ways of real programs.
#
# Most checks do the same thing twice, in an ordinary directory with the same chunk files and in the mount.
# Both must say the same and end up with the same files.  Then the shards are read without the program
# (arrays.py), the mount is ended, the shards are read again, and so is a new read-only mount.

# What ls shows is what is tested; the names are numbers.  Scripts in single quotes are other shells'.
# shellcheck disable=SC2012,SC2016 source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
export PYTHONDONTWRITEBYTECODE=1
# That of a version manager is a script that looks for the right one, and takes longer than most of what is run.
PATH=$(dirname "$(python3 -c 'import sys; print(sys.executable)')"):$PATH

# at_once NAME COMMAND...: a check beside others, as many as there are processors.
mkfifo "$TMP/turns"
exec 9<>"$TMP/turns"
for ((i = 0; i < $(nproc); i++)); do echo >&9; done
background=()
at_once() {
    read -r -u 9
    {
        check "$@" 9>&-
        echo >&9
    } &
    background+=($!)
}

# --- arrays and what must be in them -------------------------------------------------------------------

# In a directory "c" below: its key separator is "/", and shards have 2 x 4 chunks.
plane=slash
mkdir "$TMP/made" "$TMP/data"
mapfile -t layouts < <(python3 "$here/arrays.py" layouts)
for layout in "${layouts[@]}"; do
    python3 "$here/arrays.py" make "$TMP/made/$layout" "$layout"
    python3 "$here/arrays.py" extract "$TMP/made/$layout" "$TMP/made/$layout.files"
done
python3 - "$TMP/data" <<'PY'
import os
import random
import sys

numbers = random.Random(1)
for name, size in ("small", 300), ("page", 4096), ("medium", 70001), ("large", 3 << 20):
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        f.write(numbers.randbytes(size))
with open(os.path.join(sys.argv[1], "text"), "w") as f:
    f.writelines(f"line {n} is text\n" for n in range(200))
PY
data=$TMP/data

# Chunks of the plane that are there, and some that are not.
mapfile -t present < <(cd "$TMP/made/$plane.files" && find c -type f -size +0 | sort -V)
mapfile -t absent < <(comm -23 <(printf 'c/%s\n' {0..4}/{0..10} | sort) \
    <(cd "$TMP/made/$plane.files" && find c -type f | sort))

# fresh LAYOUT [OPTION...]: a new array, mounted for writing.  Sets work (a directory of the
# check's own), source, want (its chunks as plain files), log and MP.
fresh() {
    local layout=$1
    shift
    work=$(mktemp -d "$TMP/work.XXXXXX")
    source=$work/a.zarr want=$work/files log=$work/log
    cp -r "$TMP/made/$layout" "$source"
    cp -r "$TMP/made/$layout.files" "$want"
    mount_view "$source" --rw --log-file "$log" "$@"
}

# fresh_group [OPTION...]: the same with the program's own sample, a group with the array "waves".
fresh_group() {
    work=$(mktemp -d "$TMP/work.XXXXXX")
    source=$work/s.zarr want=$work/files log=$work/log
    "$SHARDFS" create --sample "$source"
    python3 "$here/arrays.py" extract "$source" "$want"
    mount_view "$source" --rw --log-file "$log" "$@"
}

# saved NAME: the file in which the program has saved the chunk NAME of the view, as the log says.  It is outside
# $TMP, and removed at the end.
saved() {
    local path
    path=$(sed -n "s|.*what was written is in \(.*/$1\)\$|\1|p" "$log" | tail -n 1)
    [[ -f $path ]]
    echo "${path%"/$1"}" >>"$TMP/saved"
    echo "$path"
}
: >"$TMP/saved"
remove_saved() {
    local rc=$? place
    if [[ $BASHPID == "$main_pid" ]]; then
        while read -r place; do
            rm -rf "$place"
        done <"$TMP/saved"
    fi
    end "$rc"
}
trap remove_saved EXIT

contents() { (cd "$1" && find . -type f ! -name zarr.json -print0 | sort -z | xargs -0 -r sha256sum); }
# Not through pipes: nobody waits for the processes behind those, and the mount is busy while they end.
same_files() {
    contents "$want" >"$work/contents-wanted"
    contents "$1" >"$work/contents-found"
    diff "$work/contents-wanted" "$work/contents-found"
}

# in_shards [--mounted]: what the shards of the source hold, and that they break no rule
in_shards() {
    rm -rf "$work/extracted"
    mkdir "$work/extracted"
    python3 "$here/arrays.py" extract "$source" "$work/extracted" "$@"
    same_files "$work/extracted"
}

# Everywhere what is in the plain directory; at the end nothing but shards and metadata is in the source.
settled() {
    same_files "$MP"
    # fsync of the mount's root
    sync "$MP"
    in_shards --mounted
    same_files "$MP"
    ended
}
ended() {
    unmount_view
    in_shards
    mount_view "$source"
    same_files "$MP"
    unmount_view
}

# both COMMAND...: in both directories, with the same result and the same words
both() {
    local in_want=0 in_mount=0
    (cd "$want" && "$@") </dev/null >"$work/in-want" 2>&1 || in_want=$?
    (cd "$MP" && "$@") </dev/null >"$work/in-mount" 2>&1 || in_mount=$?
    diff "$work/in-want" "$work/in-mount"
    [[ $in_want == "$in_mount" ]] || {
        echo "exit $in_mount, expected $in_want: $*"
        return 1
    }
}

# The same with more than one command.
script() { both bash -euc "$@"; }

# --- every pattern, on every layout --------------------------------------------------------------------

patterns() {
    local layout=$1
    shift
    fresh "$layout" "$@"
    python3 "$here/patterns.py" "$want" "$layout" >"$work/in-want"
    python3 "$here/patterns.py" "$MP" "$layout" >"$work/in-mount"
    diff "$work/in-want" "$work/in-mount"
    settled
}
for layout in "${layouts[@]}"; do
    [[ $layout == compressed ]] || at_once "all patterns: $layout" patterns "$layout"
done
for layout in slash start nested; do
    at_once "all patterns: $layout, --update=in-place" patterns "$layout" --update=in-place
done
at_once "all patterns: start, --update=append" patterns start --update=append
at_once "all patterns: nested, --update=rewrite" patterns nested --update=rewrite
at_once "all patterns: every close is a commit" patterns slash -o sync
at_once "all patterns: memory for a few chunks only" patterns slash --dirty-limit 16K

# --- tools ---------------------------------------------------------------------------------------------

redirected() {
    fresh $plane
    script 'cat "$0" >"$1"; cat "$0" >"$2"; printf more >>"$1"; printf more >>"$3"; : >"$4"' \
        "$data/small" "${present[0]}" "${absent[0]}" "${present[1]}" "${present[2]}"
    both tee -a "${present[3]}" "${absent[1]}"
    settled
}
at_once "> and >> of the shell" redirected

with_dd() {
    fresh $plane
    both dd if="$data/page" of="${present[0]}" status=none
    both dd if="$data/small" of="${present[1]}" bs=7 seek=3 count=5 conv=notrunc status=none
    both dd if="$data/small" of="${absent[0]}" bs=100 seek=50 conv=notrunc,fsync status=none
    both dd if="$data/medium" of="${present[2]}" bs=64K oflag=append conv=notrunc iflag=fullblock status=none
    both dd if="$data/page" of="${present[3]}" bs=1K oflag=sync status=none
    both dd if="$data/page" of="${present[0]}" conv=excl status=none
    settled
}
at_once "dd, conv=notrunc, seek, oflag=append, conv=excl" with_dd

copied() {
    fresh $plane
    both cp "$data/medium" "${present[0]}"
    both cp "$data/medium" "${absent[0]}"
    both cp "${present[1]}" "${present[2]}"
    both cp --reflink=auto --sparse=always "$data/page" "${present[3]}"
    both cp -n "$data/page" "${present[4]}"
    both cp --remove-destination "$data/page" "${present[5]}"
    both cp -b --suffix=.old "$data/page" "${present[6]}"
    both rm "${present[6]}.old"
    cp "$data/small" "$work/old"
    touch -d '2001-02-03 04:05:06.789' "$work/old"
    chmod 600 "$work/old"
    both cp -a "$work/old" "${present[7]}"
    both cp -a "$work/old" "${absent[1]}"
    # With its time, which is there after the commit as well.
    sync "$MP"
    sleep 1.1
    [[ $(stat -c %y "$MP/${present[7]}" "$MP/${absent[1]}" | uniq -c) == *" 2 2001-02-03 04:05:06.789"* ]]
    settled
}
at_once "cp, cp -a, cp -n, cp --remove-destination, cp -b" copied

copied_tree() {
    fresh $plane
    mkdir "$work/tree"
    cp -r "$TMP/made/$plane.files/c" "$work/tree"
    # Other chunks than those that are there, and other contents.
    (cd "$work/tree/c" && mv 0 5 && mv 4 0 && mv 5 4 && cp "$data/medium" 2/3 && rm 3/1*)
    both cp -r "$work/tree/c" .
    both cp -rT "$work/tree/c/1" c/3
    both cp -a "$work/tree/c/2" "$work/tree/c/4" c
    settled
}
at_once "cp -r and cp -a of a tree of chunks" copied_tree

# A commit makes the directory of shards, in which more of the view's directories lie than were made.
made_while_committing() {
    fresh $plane --commit-interval 0
    both rm -r c
    sync "$MP"
    script 'for directory in 0 1 2 3 4; do
        mkdir -p c/$directory && cp "$0" c/$directory/7 && sync c/$directory/7
        ls c
        [[ ! -e c/$((directory + 1)) ]]
    done' "$data/small"
    # What is removed leaves its directory, until that is removed as well.
    both rm c/3/7
    sync "$MP"
    both ls c c/3
    both rmdir c/3
    both ls c
    both mkdir c/3
    both cp "$data/page" c/3/7
    settled
}
at_once "directories are those that were made, whatever commits do" made_while_committing

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
    # The kernel knows both before.
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
    # It is there already: told, and left alone.
    both bash -c 'cp "$0" "$1.tmp"; ln "$1.tmp" "$1"; rm "$1.tmp"' "$data/page" "${present[0]}"
    # From outside a link is no way in; ln says so and nothing happens.
    fails_with "cross-device" ln "$data/page" "$MP/${absent[1]}"
    settled
}
at_once "link and unlink as a publication" linked

edited() {
    fresh $plane
    both cp "$data/text" "${present[0]}"
    both sed -i 's/text/prose/' "${present[0]}"
    sync "$MP"
    both sed -i 5d "${present[0]}"
    both sed -i.old 's/prose/text/' "${present[0]}"
    both rm "${present[0]}.old"
    if command -v perl >/dev/null; then both perl -pi -e 's/line/row/' "${present[0]}"; fi
    settled
}
at_once "sed -i, perl -i" edited

unpacked() {
    fresh $plane
    mkdir -p "$work/pack"
    cp -r "$TMP/made/$plane.files/c" "$work/pack"
    cp "$data/medium" "$work/pack/${present[0]}"
    cp "$data/small" "$work/pack/${absent[0]}"
    tar -C "$work/pack" -cf "$work/pack.tar" c
    both tar xf "$work/pack.tar"
    both tar xf "$work/pack.tar" --overwrite
    both tar xpf "$work/pack.tar" --unlink-first
    both tar xf "$work/pack.tar" --skip-old-files
    # Their times, from the archive.
    [[ $(stat -c %Y "$MP/${present[0]}") == "$(stat -c %Y "$work/pack/${present[0]}")" ]]
    settled
}
at_once "tar x over what is there, and with --unlink-first" unpacked

with_rsync() {
    fresh $plane
    local tree=$work/rsync
    mkdir "$tree"
    cp -r "$TMP/made/$plane.files/c" "$tree"
    (cd "$tree" && cp "$data/medium" "${present[0]}" && cp "$data/small" "${absent[0]}" && rm -r c/3 c/0/1*)
    local options=(-a --delete) compared=(-aniO --delete)
    [[ $1 == plain ]] || options+=("--$1")
    # It leaves files alone that are as long as its own, their times too.
    [[ $1 != append-verify ]] || compared+=(--size-only --no-times)
    both rsync "${options[@]}" "$tree/c/" c/
    # Nothing is left to send, at once and after the commit; times of directories are the source's.
    [[ -z $(rsync "${compared[@]}" "$tree/c/" "$MP/c/") ]]
    sync "$MP"
    sleep 1.1
    [[ -z $(rsync "${compared[@]}" "$tree/c/" "$MP/c/") ]]
    cp "$data/page" "$tree/${present[1]}"
    both rsync "${options[@]}" -c "$tree/c/" c/
    settled
}
if command -v rsync >/dev/null; then
    at_once "rsync -a --delete, twice" with_rsync plain
    at_once "rsync -a --delete --inplace" with_rsync inplace
    at_once "rsync -a --delete --append-verify" with_rsync append-verify
else
    skip "rsync: not installed"
fi

resized() {
    fresh $plane
    both truncate -s 10 "${present[0]}"
    both truncate -s 0 "${present[1]}"
    both truncate -s 100000 "${present[2]}"
    both truncate -s 5 "${absent[0]}"
    both truncate -s +17 "${present[3]}"
    settled
}
at_once "truncate -s shorter, longer, to nothing, of a new chunk" resized

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

directories() {
    fresh $plane
    both mkdir -p c/0 c/3
    both mkdir c/0
    both rmdir c/0
    both rm -r c/1
    both mkdir c/1
    both ls c/1
    both rmdir c/1
    both mkdir -p c/1
    both cp "$data/page" c/1/1
    both rm c/1/1
    both rmdir c/1
    settled
}
at_once "mkdir -p and rmdir of directories of chunks" directories

removed() {
    fresh $plane
    both rm "${present[@]:0:5}"
    both rm "${present[0]}"
    both rm -f "${present[0]}"
    sync "$MP"
    both rm "${present[@]:5:5}"
    both rm -r c/2
    both ls c
    settled
}
at_once "rm, rm -f, rm -r of a directory of chunks" removed

# Shard c/0/0 is the chunks of 2 rows and 4 columns.
last_chunk() {
    fresh $plane
    [[ -e $source/c/0/0 ]]
    both rm -f c/{0,1}/{0..3}
    sync "$MP"
    [[ ! -e $source/c/0/0 && -e $source/c/0/1 ]]
    both cp "$data/page" c/1/2
    sync "$MP"
    [[ -e $source/c/0/0 ]]
    both find c -type f -delete
    sync "$MP"
    [[ -z $(find "$source" -type f ! -path '*/.shardfs*' ! -name zarr.json) ]]
    settled
}
at_once "the last chunk's removal removes the shard" last_chunk

removed_while_listed() {
    fresh $plane
    rm -r "$source" "$want"
    unmount_view
    python3 "$here/shards.py" array "$source" 1 --shards 3 --chunks 2000 --bytes 8
    mount_view "$source" --rw
    python3 - "$MP/c" <<'PY'
import os
import sys

seen = []
with os.scandir(sys.argv[1]) as entries:
    for n, entry in enumerate(entries):
        seen.append(entry.name)
        # Those that are left must not be passed over, nor seen twice.
        os.unlink(entry.path)
        if n % 1000 == 999:
            fd = os.open(sys.argv[1], os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
assert sorted(map(int, seen)) == list(range(6000)), len(seen)
assert os.listdir(sys.argv[1]) == []
PY
    unmount_view
    [[ $(find "$source" -type f) == "$source/zarr.json" ]]
}
at_once "a listing goes on while its entries are removed" removed_while_listed

# --- what is where when ----------------------------------------------------------------------------------

# The same array in two states of the mount: size, inode, time of a chunk do not depend on its commit.
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
        # And when the kernel believes no longer what it knew.
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

# The write of TensorStore's file store, system call by system call.
cat >"$TMP/tensorstore.py" <<'PY'
import fcntl
import os
import struct
import sys

F_OFD_SETLKW = 38


def lock(fd, kind):
    fcntl.fcntl(fd, F_OFD_SETLKW, struct.pack("hhxxxxqqixxxx", kind, os.SEEK_SET, 0, 0, 0))


def generation(stat):
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def locked(name):
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(fd, fcntl.F_WRLCK)
            again = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            a, b = os.fstat(fd), os.fstat(again)
            os.close(again)
            if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def write(path, data):
    name = path + ".__lock"
    fd = locked(name)
    # Closed whatever happens: the others wait for this lock.
    try:
        assert os.fstat(fd).st_size == 0
        assert os.writev(fd, [data]) == len(data)
        os.fsync(fd)
        written = generation(os.fstat(fd))
        os.rename(name, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)
        assert generation(os.fstat(fd)) == written, (generation(os.fstat(fd)), written)
        lock(fd, fcntl.F_UNLCK)
        return written
    finally:
        os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return generation(os.fstat(fd)), os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)
PY

like_tensorstore() {
    fresh "$1"
    local names=(c/0/1 c/4/4)
    [[ $1 != dot ]] || names=(c.0.1 c.4.4)
    cat >"$work/dance.py" <<'PY'
import os
import sys
import time

sys.path.insert(0, sys.argv[1])
import tensorstore

for path in sys.argv[2:]:
    path = os.path.abspath(path)
    for data in b"first" * 100, b"second" * 500, b"third":
        written = tensorstore.write(path, data)
        assert tensorstore.read(path) == (written, data), (tensorstore.read(path)[0], written)
    # A write of a neighbour is none of this chunk, nor is it when the kernel has to ask again.
    neighbour = path[:-1] + "5"
    tensorstore.write(neighbour, b"neighbour")
    time.sleep(1.1)
    got = tensorstore.read(path)[0]
    assert got == written, (got, written)
    assert not os.path.exists(path + ".__lock")
PY
    both python3 "$work/dance.py" "$TMP" "${names[@]}"
    settled
}
at_once "TensorStore's lock file: inode and mtime survive rename and commit" like_tensorstore slash
at_once "TensorStore's lock file, keys with dots" like_tensorstore dot

# Several at once, each on the same chunk: one after the other, never mixed.
locked() {
    fresh $plane
    cat >"$work/locked.py" <<'PY'
import os
import sys
import threading
import traceback

sys.path.insert(0, sys.argv[1])
import tensorstore

path = os.path.abspath(sys.argv[2])
errors = []


def work(n):
    try:
        for i in range(25):
            tensorstore.write(path, bytes([n]) * 3000)
            data = tensorstore.read(path)[1]
            assert len(data) == 3000 and len(set(data)) == 1, (len(data), set(data))
    except Exception:
        errors.append(traceback.format_exc())


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not errors, "".join(errors)
tensorstore.write(path, b"last")
PY
    both python3 "$work/locked.py" "$TMP" "${present[0]}"
    settled
}
at_once "several writers with lock files" locked

fsync_of_directory() {
    fresh $plane --commit-interval 1000
    both cp "$data/page" "${present[0]}"
    both rm "${present[1]}"
    same_files "$MP"
    # Not there yet, and nothing half of it.
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

by_itself() {
    fresh $plane
    both cp "$data/page" "${present[0]}"
    within 3 in_shards --mounted
    unmount_view
    fresh $plane --commit-interval 0.1
    both cp "$data/page" "${present[0]}"
    within 1 in_shards --mounted
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

# Killed without warning: what was durable is, nothing is half there, the next mount tidies up.
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

large() {
    fresh $plane "$@"
    both cp "$data/large" "${present[0]}"
    both cp "$data/large" "${absent[0]}"
    both dd if="$data/large" of="${present[1]}" bs=1000003 seek=1 conv=notrunc status=none
    script 'for f; do cat "$0" "$0" >"$f"; done' "$data/large" "${present[@]:2:5}"
    both dd if="$data/small" of="${present[2]}" bs=1 seek=2000000 conv=notrunc status=none
    both truncate -s 4000000 "${present[3]}"
    settled
}
at_once "chunks of several MiB" large
at_once "chunks of several MiB, memory for 1" large --dirty-limit 1M

parallel() {
    fresh $plane
    cat >"$work/parallel.py" <<'PY'
import os
import sys
import threading

root, errors = sys.argv[1], []


def work(n):
    try:
        for i in range(20):
            for row in range(5):
                path = f"{root}/c/{row}/{n}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if i % 2:
                    with open(path, "wb") as f:
                        f.write(bytes([n]) * (100 * n + i))
                else:
                    with open(path + ".tmp", "wb") as f:
                        f.write(bytes([n]) * (100 * n + i))
                    os.rename(path + ".tmp", path)
                with open(path, "rb") as f:
                    assert f.read() == bytes([n]) * (100 * n + i), path
    except Exception as e:
        errors.append(repr(e))


threads = [threading.Thread(target=work, args=(n,)) for n in range(11)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not errors, "".join(errors)
PY
    python3 "$work/parallel.py" "$want"
    python3 "$work/parallel.py" "$MP"
    settled
}
at_once "eleven writers at once" parallel

# --- names that are no chunk, and chunks that cannot be --------------------------------------------------

outside() {
    fresh $plane
    fails_with "No such file" touch "$MP/c/5/0"
    fails_with "Invalid argument" touch "$MP/c/0/11"
    fails_with "Invalid argument" mkdir "$MP/c/5"
    fails_with "No such file" ls "$MP/c/5"
    # mv has words of its own for this error.
    fails_with "Invalid argument" python3 -c 'import os, sys; os.rename(*sys.argv[1:])' \
        "$MP/${present[0]}" "$MP/c/0/11"
    fails_with "" ln "$MP/${present[0]}" "$MP/c/0/11"
    both cat "${present[0]}"
    settled
}
at_once "chunks outside the array's shape are refused" outside

scratch() {
    fresh $plane
    both cp "$data/page" c/0/notes.txt
    both cp "$data/page" c/0/007
    both cp "$data/page" c/0/.hidden
    both ls -A c/0
    both cat c/0/notes.txt
    both mv c/0/notes.txt c/1/notes.md
    both cp "$data/small" c/1/notes.md
    same_files "$MP"
    sync "$MP"
    # No other reader would know what they are.
    [[ -z $(find "$source" -name 'notes*' -o -name .hidden -o -name 007) ]]
    both rm c/1/notes.md c/0/007 c/0/.hidden
    settled
}
at_once "names that are no chunk key: listed, read, renamed, never in the source" scratch

scratch_left() {
    fresh $plane
    cp "$data/page" "$MP/c/0/notes.txt"
    : >"$MP/c/0/7.__lock"
    : >"$log"
    unmount_view
    # An empty lock file is no loss; what holds something is saved, and the log says where.
    local file
    file=$(saved c/0/notes.txt)
    cmp "$file" "$data/page"
    [[ $(ls -A "${file%/*}") == notes.txt ]]
    in_shards
}
at_once "what is left of them at the end is saved, and the log says where" scratch_left

compressed() {
    fresh compressed
    local chunk new
    chunk=$(cd "$want" && find c -type f | sed -n 1p)
    new=$(comm -23 <(printf 'c/%s\n' {0..4}/{0..10} | sort) <(cd "$want" && find c -type f | sort) | sed -n 1p)
    fails_with "Read-only file system" cp "$data/page" "$MP/$chunk"
    fails_with "Read-only file system" cp "$data/page" "$MP/$new"
    fails_with "Read-only file system" rm -f "$MP/$chunk"
    fails_with "Read-only file system" truncate -s 1 "$MP/$chunk"
    fails_with "Read-only file system" mv "$MP/$chunk" "$work/moved"
    cp "$data/page" "$MP/$new.partial"
    fails_with "Read-only file system" mv "$MP/$new.partial" "$MP/$new"
    rm "$MP/$new.partial"
    settled
}
at_once "chunks of shards that are compressed as a whole are only read" compressed

own_names() {
    fresh $plane
    fails_with "not permitted" touch "$MP/.shardfs/new"
    fails_with "not permitted" rm "$MP/.shardfs/stats.json"
    fails_with "not permitted" mkdir "$MP/.shardfs/new"
    fails_with "" rm -r "$MP/.shardfs"
    fails_with "" mv "$MP/.shardfs/stats.json" "$MP/c/0/0"
    python3 -m json.tool "$MP/.shardfs/stats.json" >/dev/null
    settled
}
at_once ".shardfs cannot be changed" own_names

# --- groups, other arrays, whole arrays ------------------------------------------------------------------

# written_through COMMAND...: the same in the view and, at once, in the source
written_through() {
    fresh_group
    mkdir "$work/plain-array"
    cat >"$work/plain-array/zarr.json" <<'JSON'
{"zarr_format": 3, "node_type": "array", "shape": [10], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}
JSON
    mkdir "$work/plain-array/c"
    printf 01234 >"$work/plain-array/c/0"
    both cp -r "$work/plain-array" plain
    both cp "$data/text" README
    both mkdir -p sub/deeper
    both ln -s README link
    both ln README hard
    both mv plain moved
    both cp "$data/page" moved/c/1
    both sed -i s/text/prose/ README
    both rm moved/c/0
    both cp "$data/text" moved/notes
    diff -r "$source/moved" "$MP/moved"
    [[ $(readlink "$source/link") == README && $(stat -c %i "$source/hard") != 0 ]]
    both cat README hard link
    both rm link hard
    both rmdir sub/deeper sub
    [[ ! -e $source/sub ]]
    diff "$source/moved/zarr.json" "$work/plain-array/zarr.json"
    settled
}
at_once "groups, unsharded arrays and other files are written through" written_through

remove_array() {
    fresh_group
    "$@" "$MP/waves"
    rm -r "$want/waves"
    [[ $(ls "$MP") == zarr.json ]]
    sync "$MP"
    [[ $(ls -A "$source") == zarr.json ]]
    settled
}
at_once "rm -r of an array in a group" remove_array rm -r
at_once "rm -rf of an array in a group" remove_array rm -rf
at_once "shutil.rmtree of an array in a group" remove_array python3 -c 'import shutil, sys; shutil.rmtree(sys.argv[1])'

remove_and_write() {
    fresh_group
    cp -r "$MP/waves" "$work/unsharded"
    both rm -r waves
    # What comes in its place is what was written: an unsharded array.
    both cp -r "$work/unsharded" waves
    diff -r "$work/unsharded" "$source/waves"
    settled
}
at_once "an array removed, and an unsharded one of its name copied in" remove_and_write

moved_array() {
    fresh_group --commit-interval 1000
    both rm -f waves/c/0/0/0
    both cp "$data/page" waves/c/0/0/1
    both mv waves billows
    both cp "$data/page" billows/c/0/0/2
    both ls -A
    # Its shards went along.
    [[ -e $source/billows/c/0/0/0 && ! -e $source/waves ]]
    settled
}
at_once "mv of an array in its group" moved_array

refused_sharded() {
    fresh_group
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/waves/zarr.json"
    mkdir "$MP/new"
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/new/zarr.json"
    grep -q 'new/zarr.json' "$log"
    [[ ! -s $source/new/zarr.json ]]
    cp "$source/waves/zarr.json" "$MP/new/zarr.json.tmp"
    fails_with "Invalid argument" python3 -c 'import os, sys; os.rename(sys.argv[1] + ".tmp", sys.argv[1])' \
        "$MP/new/zarr.json"
    rm -r "$MP/new"
    settled
}
at_once "a sharded zarr.json is refused, for there are no shards to be written through a mount" refused_sharded

# --- zarr.json -------------------------------------------------------------------------------------------

# edit HOW SNIPPET: changes the document "m" of the mounted array as writers do
edit() {
    python3 - "$MP/${3:-}zarr.json" "$1" "$2" <<'PY'
import json
import os
import sys

path, how, snippet = sys.argv[1:]
with open(path) as f:
    m = json.load(f)
exec(snippet)
text = json.dumps(m, indent=2)
if how == "in-place":
    with open(path, "w") as f:
        f.write(text)
elif how == "keeping":
    # Longer than what is there, or filled up: without truncation.
    with open(path, "r+") as f:
        f.write(text)
        f.truncate()
else:
    with open(path + ".partial", "w") as f:
        f.write(text)
    try:
        os.rename(path + ".partial", path)
    except OSError:
        os.unlink(path + ".partial")
        raise
PY
}

# document FILE EXPRESSION: a value in it
document() { python3 -c 'import json, sys; m = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"; }

attributes_changed() {
    fresh $plane
    cp "$source/zarr.json" "$work/before.json"
    edit "$1" 'm["attributes"] = {"unit": "nm", "long": "x" * 5000, "number": -0.0}'
    [[ $(document "$MP/zarr.json" 'm["attributes"]["unit"]') == nm ]]
    [[ $(document "$source/zarr.json" 'm["attributes"]["unit"]') == nm ]]
    edit "$1" 'm["dimension_names"] = ["y", None]; m["attributes"] = {}'
    [[ $(document "$source/zarr.json" 'm["dimension_names"]') == "['y', None]" ]]
    [[ $(document "$source/zarr.json" 'm["attributes"]') == "{}" ]]
    # Everything else is as it was: it is a sharded array.
    [[ $(document "$source/zarr.json" 'm["codecs"], m["chunk_grid"]') == \
        "$(document "$work/before.json" 'm["codecs"], m["chunk_grid"]')" ]]
    [[ $(document "$MP/zarr.json" '"sharding" in str(m)') == False ]]
    edit "$1" 'del m["dimension_names"]'
    [[ $(document "$source/zarr.json" '"dimension_names" in m') == False ]]
    both cp "$data/page" "${present[0]}"
    [[ $(find "$source" -name 'zarr.json?*') == "" ]]
    settled
}
for how in in-place keeping renamed; do
    at_once "attributes and dimension names change, zarr.json written $how" attributes_changed $how
done

grown() {
    fresh $plane
    fails_with "Invalid argument" mkdir "$MP/c/6"
    edit renamed 'm["shape"] = [28, 60]'
    [[ $(document "$source/zarr.json" 'm["shape"]') == "[28, 60]" ]]
    both mkdir -p c/6
    both cp "$data/page" c/6/2
    both cp "$data/page" c/0/14
    both cp "$data/page" "${present[0]}"
    settled
}
at_once "an array grows: its new chunks can be written" grown

shrunk() {
    fresh $plane
    # Written, not committed, and outside a moment later.
    both cp "$data/page" c/4/10
    both cp "$data/page" c/0/0
    edit "$1" 'm["shape"] = [11, 20]'
    (cd "$want" && rm -rf c/3 c/4 c/*/{5..10})
    same_files "$MP"
    fails_with "Invalid argument" mkdir "$MP/c/3"
    fails_with "Invalid argument" touch "$MP/c/0/5"
    sync "$MP"
    in_shards --mounted
    # And is not there when the array grows again.
    edit "$1" 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "an array shrinks: chunks outside are removed" shrunk renamed

shrunk_and_removed() {
    fresh_group
    edit renamed 'm["shape"] = [s // 3 for s in m["shape"]]' waves/
    sync "$MP"
    rm -r "$MP/waves"
    [[ $(ls -A "$source") == zarr.json ]]
}
at_once "an array that has shrunk is removed: nothing is left of it" shrunk_and_removed

shrunk_flat() {
    fresh dot
    edit renamed 'm["shape"] = [11, 20]'
    (cd "$want" && rm -f c.3.* c.4.* c.*.{5..10})
    same_files "$MP"
    sync "$MP"
    in_shards --mounted
    edit renamed 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "an array shrinks, all chunks in one directory" shrunk_flat
at_once "an array shrinks, zarr.json written in place" shrunk in-place

shrunk_keeping() {
    fresh $plane -o keep_outside
    edit renamed 'm["shape"] = [11, 20]'
    [[ $(find "$MP/c" -type f | wc -l) == "$(cd "$want" && find c/[0-2]/[0-4] -type f | wc -l)" ]]
    # A commit of such a shard keeps them too.
    both cp "$data/page" c/0/0
    both cp "$data/page" c/2/4
    sync "$MP"
    rm -rf "$work/extracted"
    python3 "$here/arrays.py" extract "$source" "$work/extracted" --mounted --outside
    same_files "$work/extracted"
    edit renamed 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "-o keep_outside: an array shrinks and grows, nothing is lost" shrunk_keeping

refused() {
    local before
    fresh $plane
    for snippet in \
        'm["codecs"].append({"name": "gzip", "configuration": {"level": 1}})' \
        'm["codecs"] = [{"name": "bytes", "configuration": {"endian": "big"}}]' \
        'm["data_type"] = "int8"' \
        'm["chunk_grid"]["configuration"]["chunk_shape"] = [8, 4]' \
        'm["chunk_key_encoding"] = {"name": "v2"}' \
        'm["fill_value"] = 7' \
        'm["shape"] = [20]' \
        'm["zarr_format"] = 2' \
        'm = {"zarr_format": 3, "node_type": "group", "attributes": {}}' \
        'm["something"] = "unknown"'; do
        before=$(cat "$MP/zarr.json")
        : >"$log"
        fails_with "Invalid argument" edit "$1" "$snippet"
        # Both show what holds.
        cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
        [[ $(cat "$MP/zarr.json") == "$before" ]]
        grep -q 'zarr.json' "$log"
    done
    both cp "$data/page" "${present[0]}"
    settled
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
}
for how in in-place keeping renamed; do
    at_once "codecs, data type, grid, fill value, keys may not change, zarr.json written $how" refused $how
done

not_json() {
    fresh $plane
    fails_with "Invalid argument" cp "$data/text" "$MP/zarr.json"
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
    python3 -m json.tool "$MP/zarr.json" >/dev/null
    settled
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
}
at_once "what is no JSON is refused, and not shown" not_json

# --- errors ----------------------------------------------------------------------------------------------

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
    # Others are written.
    cp "$data/page" "$MP/c/0/4"
    sync "$MP"
    cmp "$data/page" "$MP/c/0/4"
    unmount_view
    cmp "$source/c/0/0" "$work/damaged"
    grep -q 'c/0/0: .*`shardfs recover --scan`' "$log"
}
at_once "a chunk of a damaged shard is not written: EIO, and the shard stays as it is" damaged

two_writers() {
    fresh $plane
    local first=$MP second
    mount_view "$source" --rw
    second=$MP
    cat >"$work/writer.py" <<'PY'
import os
import sys
import time

root, parity = sys.argv[1], int(sys.argv[2])
for i in range(40):
    for row in range(4):
        for column in range(parity, 8, 2):
            with open(f"{root}/c/{row}/{column}", "wb") as f:
                f.write(f"{i} {row} {column} ".encode() * (20 + (i * column) % 7))
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
PY
    mkdir -p "$want"/c/{0..3}
    python3 "$work/writer.py" "$want" 0
    python3 "$work/writer.py" "$want" 1
    local writers=()
    python3 "$work/writer.py" "$first" 0 &
    writers+=($!)
    python3 "$work/writer.py" "$second" 1 &
    writers+=($!)
    wait "${writers[0]}"
    wait "${writers[1]}"
    in_shards --mounted
    sleep 1.1
    same_files "$first"
    same_files "$second"
    unmount_view "$first"
    unmount_view "$second"
    in_shards
}
at_once "two mounts write different chunks of the same shards at once: nothing is lost" two_writers

# Sets MP and source; $work/other.zarr is the same array after somebody else has changed chunk c/0/0.
changed_elsewhere() {
    fresh $plane --commit-interval 1000
    local writer=$MP
    cp -r "$source" "$work/other.zarr"
    mount_view "$work/other.zarr" --rw
    cp "$data/text" "$MP/c/0/0"
    unmount_view
    MP=$writer
}

merged() {
    changed_elsewhere
    both cp "$data/page" c/0/1
    cp "$work/other.zarr/c/0/0" "$source/c/0/0.new"
    mv "$source/c/0/0.new" "$source/c/0/0"
    cp "$data/text" "$want/c/0/0"
    sync "$MP"
    in_shards --mounted
    sleep 1.1
    settled
}
at_once "a shard replaced by others before the commit: other chunks are merged" merged

stale() {
    changed_elsewhere
    : >"$log"
    python3 - "$MP/c/0/0" "$source" <<'PY'
import errno
import os
import sys

path, source = sys.argv[1:]
fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
os.write(fd, b"too late")
os.rename(os.path.join(os.path.dirname(source), "other.zarr/c/0/0"), source + "/c/0/0")
try:
    os.fsync(fd)
    raise AssertionError("no error")
except OSError as e:
    assert e.errno == errno.ESTALE, e
os.close(fd)
PY
    # What the others wrote counts; what was written here is saved.
    cp "$data/text" "$want/c/0/0"
    in_shards --mounted
    grep -q 'c/0/0' "$log"
    local file
    file=$(saved c/0/0)
    [[ $(cat "$file") == "too late" ]]
    sleep 1.1
    settled
}
at_once "a chunk replaced by others before its commit: ESTALE, the others' counts, ours is saved" stale

# --- no space, no permission -----------------------------------------------------------------------------

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
    # It says so, and does not hang.
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
    # Either there is no such mount, or writing fails; nothing is pretended.
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

# What was written to an array must not end up in another one that has its place by now.
replaced_array() {
    local top=$TMP/replaced-$1 log=$TMP/replaced-$1.log saved
    mkdir "$top"
    "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$top" --rw --commit-interval 1000 --log-file "$log"
    mkdir -p "$MP/a/c/0"
    head -c 64 "$data/page" >"$MP/a/c/0/0"
    mv "$top/a" "$top/old"
    if [[ $1 == other ]]; then
        "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 4,4 --shard 32,32
    fi
    fails_with 'or put another one in its place' "$SHARDFS" sync "$MP"
    saved=$(sed -n 's/.*what was written is in //p' "$log")
    head -c 64 "$data/page" | cmp - "$saved"
    unmount_view
    [[ ! -e $top/a/c ]]
    # It belongs to the old one.
    mv "$top/old" "$top/new"
    rm -rf "$top/a"
    mv "$top/new" "$top/a"
    "$SHARDFS" recover --unsaved "${saved%/a/c/0/0}" "$top"
    mount_view "$top"
    head -c 64 "$data/page" | cmp - "$MP/a/c/0/0"
    unmount_view
}
for what in other none; do
    at_once "an array that is replaced while chunks wait ($what): ESTALE, they are saved" replaced_array $what
done

# The shape alone may change.
grown_array() {
    local top=$TMP/grown
    mkdir "$top"
    "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$top" --rw --commit-interval 1000
    mkdir -p "$MP/a/c/0"
    head -c 64 "$data/page" >"$MP/a/c/0/0"
    python3 - "$top/a/zarr.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as file:
    document = json.load(file)
document["shape"] = [96, 64]
with open(sys.argv[1], "w") as file:
    json.dump(document, file)
PY
    "$SHARDFS" sync "$MP"
    head -c 64 "$data/page" | cmp - "$MP/a/c/0/0"
    unmount_view
    "$SHARDFS" verify "$top"
}
at_once "an array that grows while chunks wait" grown_array

# What is changed in memory is in the shard in the end, whatever is closed first.
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

# What cannot be made through the mount says how it is made.
sharded_array_through_the_mount() {
    local source=$TMP/through.zarr
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw --log-file "$TMP/through.log"
    mkdir "$MP/new"
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/new/zarr.json"
    grep 'new/zarr.json: a sharded array cannot be made through the view: make it in the source, with `shardfs create`.*`shardfs pack`' \
        "$MP/.shardfs/log"
    unmount_view
}
at_once "a sharded array made through the mount: EINVAL, the log says what to do" sharded_array_through_the_mount

wait "${background[@]}"

# An error of the mount must not be one of its own making: no check has left a word of a crash.
no_panic() { fails_with "" grep -i panick "$TMP"/work.*/log; }
check "nothing in the logs of a panic" no_panic
