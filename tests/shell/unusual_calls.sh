#!/bin/bash
# Calls that few programs make: special files, times of reading, locks, copies within the kernel, and those that
# not every filesystem has.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
export PYTHONDONTWRITEBYTECODE=1

sample() { "$SHARDFS" create --sample "$1" >/dev/null; }

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
os.unlink(SCRATCH)
END
    unmount_view
}
check "calls that not every filesystem has end as their callers expect" calls
