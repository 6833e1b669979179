#!/bin/bash
# What few programs do, and some do all the same: documents that are none, special files, a source that is removed
# while it is mounted, shapes that come and go, calls that not every filesystem has.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
export PYTHONDONTWRITEBYTECODE=1

sample() { "$SHARDFS" create --sample "$1" >/dev/null; }

# --- documents --------------------------------------------------------------------------------------

documents_that_are_none() {
    local source=$TMP/documents name
    sample "$source"
    mount_view "$source" --rw
    for name in '\x01\x02' '' '{"some": "thing"}' '[1, 2]'; do
        mkdir -p "$MP/store/foo"
        # As a program writes it in one go, in the place of another, and by a rename.
        # shellcheck disable=SC2059 # escapes
        printf "$name" >"$MP/store/zarr.json"
        # shellcheck disable=SC2059
        cmp "$MP/store/zarr.json" <(printf "$name")
        # shellcheck disable=SC2059
        printf "$name" >"$MP/store/foo/zarr.json.partial"
        mv "$MP/store/foo/zarr.json.partial" "$MP/store/foo/zarr.json"
        sync "$MP/store/zarr.json"
        # Beside it are files like any other.
        mkdir -p "$MP/store/c" "$MP/store/foo/c"
        echo chunk >"$MP/store/c/0"
        echo chunk >"$MP/store/foo/c/0.0"
        [[ $(<"$MP/store/c/0") == chunk && $(<"$source/store/foo/c/0.0") == chunk ]]
        sleep 1.2
        [[ $(<"$MP/store/c/0") == chunk ]]
        # shellcheck disable=SC2059
        cmp "$source/store/zarr.json" <(printf "$name")
        # shellcheck disable=SC2059
        cmp "$source/store/foo/zarr.json" <(printf "$name")
        rm -r "$MP/store"
    done
    touch "$MP/zarr.json.new"
    : >"$MP/zarr.json"
    is_empty() { [[ $(stat -c %s "$source/zarr.json") == 0 ]]; }
    within 5 is_empty
    [[ -e $source/zarr.json.new && -s $MP/waves/zarr.json ]]
    unmount_view
}
check "zarr.json outside of arrays may be anything" documents_that_are_none

# Who is at work below such a directory notices nothing of it.
documents_written_over_and_over() {
    local source=$TMP/often
    sample "$source"
    mount_view "$source" --rw
    mkdir -p "$MP/store/a/b"
    python3 - "$MP/store" <<'END'
import os, sys, threading

top = sys.argv[1]
is_done = threading.Event()
failed = []


def write(directory, content):
    try:
        for number in range(300):
            new = f"{directory}/zarr.json.{content}"
            with open(new, "w") as f:
                f.write(content * number)
            os.rename(new, f"{directory}/zarr.json")
    except OSError as e:
        failed.append(f"writing: {e}")
    is_done.set()


def look(name):
    while not is_done.is_set():
        try:
            with open(name, "w") as f:
                f.write("chunk")
            with open(name) as f:
                f.read()
            os.unlink(name)
        except OSError as e:
            failed.append(f"below: {e}")


threads = [threading.Thread(target=write, args=(top, letter)) for letter in "xy"]
threads += [threading.Thread(target=write, args=(f"{top}/a", "z"))]
threads += [threading.Thread(target=look, args=(f"{top}/{name}",)) for name in ("f", "a/b/g")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(f"{len(failed)} errors: {failed[:3]}" if failed else 0)
END
    unmount_view
}
check "zarr.json that is none is replaced over and over" documents_written_over_and_over

documents_of_arrays() {
    local source=$TMP/protected before
    sample "$source"
    cp -r "$source/waves" "$source/plain"
    sed -i 's/"zarr_format": 3,/&"attributes": {}, /' "$source/zarr.json"
    cat >"$source/plain/zarr.json" <<'END'
{"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": ["bytes"]}
END
    mount_view "$source" --rw
    for array in waves plain; do
        before=$(sha256sum <"$source/$array/zarr.json")
        for text in 'no json' '{"some": ' '{"codecs": [{"name": "sharding_indexed"}]'; do
            echo "$text" >"$TMP/text"
            fails_with "Invalid argument" cp "$TMP/text" "$MP/$array/zarr.json"
            cp "$TMP/text" "$MP/$array/new.part"
            fails_with "Invalid argument" python3 -c \
                "import os, sys; os.rename(sys.argv[1], sys.argv[2])" "$MP/$array/new.part" "$MP/$array/zarr.json"
            rm "$MP/$array/new.part"
            # Nor in a directory in it.
            mkdir -p "$MP/$array/below"
            fails_with "Invalid argument" cp "$TMP/text" "$MP/$array/below/zarr.json"
        done
        [[ $(sha256sum <"$source/$array/zarr.json") == "$before" ]]
    done
    # What may have been meant for a sharded array is refused everywhere.
    fails_with "Invalid argument" cp "$TMP/text" "$MP/zarr.json"
    unmount_view
}
check "zarr.json of arrays stays one" documents_of_arrays

becomes_valid() {
    local source=$TMP/becomes
    sample "$source"
    mount_view "$source" --rw
    mkdir -p "$MP/new/c/0"
    echo none >"$MP/new/zarr.json"
    echo plain >"$MP/new/c/0/notes"
    [[ $(<"$MP/new/c/0/notes") == plain ]]
    # Others make an array of it: what is in it is shards from then on.
    cp -r "$source/waves/." "$source/new"
    sleep 1.2
    cmp "$MP/new/c/0/0/0" "$MP/waves/c/0/0/0"
    fails_with "No such file" cat "$MP/new/c/0/notes"
    # And damage it: that is no plain file, but an array nobody can read.
    sleep 1.2
    echo none >"$source/new/zarr.json"
    sleep 1.2
    fails_with "Input/output error" cat "$MP/new/c/0/0/0"
    unmount_view
}
check "a directory is what its zarr.json says by now" becomes_valid

# --- the source is removed --------------------------------------------------------------------------

source_is_removed() {
    local source=$TMP/gone options=$1
    sample "$source"
    # shellcheck disable=SC2086 # several
    mount_view "$source" $options
    gzip -dc <"$MP/waves/c/0/0/0" >/dev/null
    exec 9<"$MP/waves/c/0/0/1"
    rm -rf "$source"
    sleep 1.2
    for name in waves/zarr.json zarr.json waves/c/0/0/0 waves/c/1/0/0 waves/nothing nothing waves; do
        fails_with "Stale file handle" stat "$MP/$name"
    done
    fails_with "Stale file handle" ls "$MP"
    fails_with "Stale file handle" ls "$MP/waves/c/0"
    exec 9<&-
    [[ $(grep -c "the source's directory was removed" "$MP/.shardfs/log") == 1 ]]
    [[ $options != --rw ]] || fails_with "Stale file handle" touch "$MP/new"
    timeout 30 "$SHARDFS" umount "$MP" || [[ $options == --rw ]]
    not_mounted "$MP"
}
check "what a removed source had is stale, not absent" source_is_removed ""
check "what a removed source had is stale, not absent, in a writable mount" source_is_removed --rw

array_loses_its_document() {
    local source=$TMP/lost
    sample "$source"
    mount_view "$source"
    sha256sum "$MP/waves/c/0/0/0" >"$TMP/sum"
    mv "$source/waves/zarr.json" "$TMP/document"
    sleep 1.2
    # What is left are shards, under names of chunks.
    fails_with "Input/output error" cat "$MP/waves/c/0/0/0"
    fails_with "Input/output error" cat "$MP/waves/c/0/1/1"
    fails_with "No such file" cat "$MP/waves/zarr.json"
    [[ $(grep -c "waves/zarr.json: it is gone" "$MP/.shardfs/log") == 1 ]]
    sleep 1.2
    fails_with "Input/output error" cat "$MP/waves/c/0/0/0"
    mv "$TMP/document" "$source/waves/zarr.json"
    sleep 1.2
    sha256sum --check --quiet "$TMP/sum"
    # Another directory of that name is what it is.
    mv "$source/waves" "$source/elsewhere"
    mkdir -p "$source/waves/c/0/0"
    echo plain >"$source/waves/c/0/0/0"
    sleep 1.2
    [[ $(<"$MP/waves/c/0/0/0") == plain ]]
    unmount_view
}
check "shards of an array that has lost its zarr.json are not shown as its chunks" array_loses_its_document

# --- shapes -----------------------------------------------------------------------------------------

shrinks_and_grows() {
    local source=$TMP/shapes
    sample "$source"
    mount_view "$source" --rw
    python3 - "$MP" <<'END'
import os, sys, re
mp = sys.argv[1]
document = os.path.join(mp, "waves/zarr.json")
chunks = [os.path.join(mp, "waves/c", key) for key in ("3/0/0", "3/0/1", "3/0/2", "0/0/1")]
fds = [os.open(chunk, os.O_RDWR) for chunk in chunks]
os.pwrite(fds[0], b"written before the shrink", 0)
os.pwrite(fds[3], b"inside", 0)
closed = os.open(os.path.join(mp, "waves/c/3/0/3"), os.O_RDWR | os.O_CREAT)
os.pwrite(closed, b"closed before", 0)
os.close(closed)
text = open(document).read()
def resize(extent):
    with open(document, "w") as f:
        f.write(re.sub(r'("shape": \[\s*)\d+', r"\g<1>%d" % extent, text))
    assert '"shape": [\n    %d' % extent in open(document).read()
resize(32)
os.pwrite(fds[1], b"written while it is small", 0)
os.fsync(fds[1])
resize(64)
os.pwrite(fds[2], b"written after", 0)
os.fsync(fds[2])
assert os.pread(fds[0], 7, 0) == b"written" and os.pread(fds[2], 7, 0) == b"written"
for fd in fds:
    os.close(fd)
for chunk in chunks[:3]:
    assert not os.path.exists(chunk), chunk
assert open(chunks[3], "rb").read(6) == b"inside"
# New ones are chunks as before.
os.makedirs(os.path.dirname(chunks[0]))
with open(chunks[0], "wb") as f:
    f.write(b"new")
END
    "$SHARDFS" sync "$MP"
    sleep 1.2
    [[ $(ls "$MP/waves/c/3/0") == 0 && $(<"$MP/waves/c/3/0/0") == new ]]
    [[ ! -s $MP/.shardfs/waiting.txt ]]
    unmount_view
    mount_view "$source"
    [[ $(ls "$MP/waves/c/3/0") == 0 && $(<"$MP/waves/c/3/0/0") == new ]]
    unmount_view
}
check "a descriptor of before a shrink brings no chunk back" shrinks_and_grows

# --- special files ----------------------------------------------------------------------------------

special_files() {
    local source=$TMP/special
    sample "$source"
    mount_view "$source" --rw
    python3 - "$MP" "$source" <<'END'
import errno, os, socket, stat, sys
mp, source = sys.argv[1:]
here = os.path.join(mp, "waves")
def refused(want, name, mode, device=0):
    try:
        os.mknod(os.path.join(here, name), mode, device)
    except OSError as error:
        assert error.errno == want, (name, error)
    else:
        raise AssertionError(name)
os.umask(0o027)
os.mkfifo(os.path.join(here, "pipe"), 0o666)
for top in here, os.path.join(source, "waves"):
    mode = os.stat(os.path.join(top, "pipe")).st_mode
    assert stat.S_ISFIFO(mode) and stat.S_IMODE(mode) == 0o640, oct(mode)
refused(errno.EEXIST, "pipe", stat.S_IFIFO | 0o600)
# It is one: what is written comes out.
end = os.open(os.path.join(here, "pipe"), os.O_RDWR)
os.write(end, b"through")
assert os.read(end, 100) == b"through"
os.close(end)
os.chdir(here)
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("socket")
assert stat.S_ISSOCK(os.stat(os.path.join(source, "waves/socket")).st_mode)
os.rename("pipe", "pipe2")
os.unlink("pipe2")
os.unlink("socket")
for name, kind in ("file", stat.S_IFREG), ("c/0/0/6", stat.S_IFREG), ("c/0/0/x.tmp", stat.S_IFREG):
    os.mknod(name, kind | 0o644)
    assert os.stat(name).st_size == 0 and stat.S_ISREG(os.stat(name).st_mode)
    refused(errno.EEXIST, name, kind | 0o644)
os.unlink("c/0/0/6")
os.unlink("c/0/0/x.tmp")
for name in "c/0/0/6", "c/0/0/pipe", "zarr.json2/../c/0/0/x":
    if "json2" not in name:
        refused(errno.EPERM, name, stat.S_IFIFO | 0o600)
refused(errno.EPERM, "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
END
    unmount_view
}
check "named pipes, sockets and files are made by mknod" special_files

# --- times ------------------------------------------------------------------------------------------

times_of_reading() {
    local source=$TMP/times
    sample "$source"
    echo text >"$source/notes"
    touch -a -d '2001-01-01 01:01:01.5' "$source/notes"
    touch -m -d '2002-02-02 02:02:02.5' "$source/notes"
    mount_view "$source" --rw
    [[ $(stat -c '%x %y' "$MP/notes") == "$(stat -c '%x %y' "$source/notes")" ]]
    touch -a -d '2003-03-03 03:03:03.25' "$MP/notes"
    [[ $(stat -c %x "$MP/notes") == *2003-03-03* && $(stat -c %y "$MP/notes") == *2002-02-02* ]]
    [[ $(stat -c '%x %y' "$MP/notes") == "$(stat -c '%x %y' "$source/notes")" ]]
    touch -a "$MP/notes"
    [[ $(($(date +%s) - $(stat -c %X "$MP/notes"))) -lt 5 ]]
    touch -d '2004-04-04' "$MP/waves"
    [[ $(stat -c %x "$MP/waves") == *2004-04-04* ]]
    # A chunk has no time of its own at which it was read.
    touch -a -d '2003-03-03' "$MP/waves/c/0/0/0"
    [[ $(stat -c %x "$MP/waves/c/0/0/0") == "$(stat -c %y "$MP/waves/c/0/0/0")" ]]
    unmount_view
}
check "what is passed through tells when it was last read" times_of_reading

# --- calls that not every filesystem has ------------------------------------------------------------

calls() {
    local source=$TMP/calls
    sample "$source"
    mount_view "$source" --rw
    python3 - "$MP" <<'END'
import ctypes, errno, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, NOREPLACE, EXCHANGE, WHITEOUT = -100, 1, 2, 4
os.chdir(os.path.join(sys.argv[1], "waves"))
CHUNK, OTHER, SCRATCH, FILE = "c/0/0/0", "c/0/0/1", "c/0/0/x.tmp", "notes"
for name in SCRATCH, FILE:
    with open(name, "wb") as f:
        f.write(b"x" * 3000)
names = CHUNK, SCRATCH, FILE, "zarr.json"

def fails(want, function, *args):
    try:
        value = function(*args)
    except OSError as error:
        assert error.errno in want, (function, args, error)
    else:
        raise AssertionError((function, args, value))

def renameat2(old, new, flags):
    if libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2", old)

def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "fallocate")

for name in names:
    fd = os.open(name, os.O_RDWR)
    size = os.fstat(fd).st_size
    # The C library's fallback writes zeros: callers that insist have their file.
    for mode in 0, 1, 2 | 1, 8, 16, 32:
        fails([errno.EOPNOTSUPP], fallocate, fd, mode, 0, 100)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    assert os.lseek(fd, 0, os.SEEK_HOLE) == size
    fails([errno.ENXIO], os.lseek, fd, size, os.SEEK_DATA)
    # Locks of this machine.
    again = os.open(name, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    fails([errno.EAGAIN], fcntl.flock, again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_UN)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
    if os.fork() == 0:
        try:
            fcntl.lockf(again, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
        except OSError as error:
            os._exit(0 if error.errno in (errno.EAGAIN, errno.EACCES) else 1)
        os._exit(2)
    assert os.wait()[1] == 0
    os.close(again)
    os.close(fd)

# Copies within the kernel, from each kind to each.
for source in CHUNK, SCRATCH, FILE:
    for target in "c/0/0/5", "c/0/0/y.tmp", "copy":
        content = open(source, "rb").read()
        with open(source, "rb") as a, open(target, "wb") as b:
            done = 0
            while done < len(content):
                done += os.copy_file_range(a.fileno(), b.fileno(), len(content) - done)
        assert open(target, "rb").read() == content, (source, target)
        os.unlink(target)

for directory in ".", "c/0/0":
    fails([errno.EOPNOTSUPP], os.open, directory, os.O_TMPFILE | os.O_RDWR, 0o600)

for a in CHUNK, SCRATCH, FILE:
    for b in OTHER, "zarr.json", FILE:
        if a != b:
            before = [open(name, "rb").read() for name in (a, b)]
            fails([errno.EINVAL], renameat2, a, b, EXCHANGE)
            fails([errno.EINVAL], renameat2, a, b, WHITEOUT)
            fails([errno.EEXIST], renameat2, a, b, NOREPLACE)
            assert before == [open(name, "rb").read() for name in (a, b)]
for a, b in (SCRATCH, "c/0/0/6"), ("c/0/0/6", "moved"), ("moved", SCRATCH):
    renameat2(a, b, NOREPLACE)
    assert open(b, "rb").read() == b"x" * 3000 and not os.path.exists(a)
END
    unmount_view
}
check "calls that not every filesystem has end as their callers expect" calls

# --- open files -------------------------------------------------------------------------------------

few_open_files() {
    local source=$TMP/few shards=3000
    sample "$source"
    mkdir "$source/many"
    cat >"$source/many/zarr.json" <<END
{"zarr_format": 3, "node_type": "array", "shape": [$((shards * 2))], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "sharding_indexed",
 "configuration": {"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes"]}}]}
END
    python3 -c 'import sys; [open(f"{sys.argv[1]}/plain{n}", "w").write(str(n)) for n in range(300)]' "$source"
    new_mount_point
    (ulimit -n 100 && "$SHARDFS" mount --rw "$source" "$MP")
    python3 - "$MP" "$shards" <<'END'
import errno, os, sys
mp, shards = sys.argv[1], int(sys.argv[2])
os.mkdir(os.path.join(mp, "many/c"))
for shard in range(shards):
    with open(os.path.join(mp, f"many/c/{2 * shard}"), "wb") as f:
        f.write(b"%d" % shard)
opened, refused = [], 0
for number in range(300):
    try:
        opened.append((number, os.open(os.path.join(mp, f"plain{number}"), os.O_RDONLY)))
    except OSError as error:
        assert error.errno in (errno.EMFILE, errno.ENFILE), error
        refused += 1
# Commits in the background take some, and give them back.
assert 10 < len(opened) < 100 and refused == 300 - len(opened), len(opened)
# Those that are open are read, and so is what needs no file of its own.
assert all(int(os.pread(fd, 10, 0)) == number for number, fd in opened)
assert os.stat(os.path.join(mp, "plain299")).st_size == 3
for _, fd in opened:
    os.close(fd)
for number in range(300):
    with open(os.path.join(mp, f"plain{number}")) as f:
        assert int(f.read()) == number
END
    "$SHARDFS" sync "$MP"
    [[ $(grep -c "no more files can be opened: .*limit of this process is 100" "$MP/.shardfs/log") == 1 ]]
    [[ $(find "$source/many/c" -type f | wc -l) == "$shards" && $(<"$MP/many/c/4242") == 2121 ]]
    unmount_view
}
check "few open files: what is refused is told, nothing else fails" few_open_files

# --- messages ---------------------------------------------------------------------------------------

sync_says_what_failed() {
    local source=$TMP/failing out
    sample "$source"
    mount_view "$source" --rw
    ln -s nowhere "$source/waves/.shardfs"
    echo new >"$MP/waves/c/0/0/0"
    out=$(expect_exit 2 "$SHARDFS" sync "$MP")
    echo "$out"
    [[ $out == *"not everything could be written: Input/output error"* && $out == *"waves/c/0/0/0: "* ]]
    [[ $out == *"$MP/.shardfs/waiting.txt"* && $out == *"$MP/.shardfs/log"* && $out != *uncategorized* ]]
    rm "$source/waves/.shardfs"
    "$SHARDFS" sync "$MP"
    [[ $(<"$MP/waves/c/0/0/0") == new ]]
    unmount_view
}
check "sync says what failed, where the list is and what to do" sync_says_what_failed
