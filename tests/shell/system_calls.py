"""System calls on files that are passed through must end as on the source's filesystem.

    system_calls.py DIRECTORY TWIN [one-user [UID]]

Each case does the same in a new directory below either, and must see the same: results, errnos, attributes. A
line for each: "ok NAME" or "FAIL NAME: why". Those of several users need root, and a mount that is for all.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
import time

roots = sys.argv[1:3]
several_users = os.geteuid() == 0 and sys.argv[3:4] != ["one-user"]
libc = ctypes.CDLL(None, use_errno=True)
cases = []
OTHER, GROUP = 21003, 22000
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2


def case(needs_root=False):
    def add(function):
        if several_users or not needs_root:
            cases.append(function)
        return function

    return add


class Seen:
    """What a case sees, in order."""

    def __init__(self):
        self.lines = []

    def note(self, what, value):
        self.lines.append(f"{what}: {value}")

    def call(self, what, function, *args, **named):
        """Notes the result of a call, or its errno."""
        try:
            value = function(*args, **named)
            self.note(what, "done" if value is None else value)
            return value
        except OSError as e:
            self.note(what, errno.errorcode.get(e.errno, e.errno))
        return None

    def stat(self, what, path, *more):
        """Kind, permissions, owner, size and links of a file, and of a directory no size and links."""
        try:
            s = os.stat(path, follow_symlinks=False)
        except OSError as e:
            return self.note(what, errno.errorcode.get(e.errno, e.errno))
        own = f"{s.st_mode:o} {s.st_uid}:{s.st_gid}"
        size = "" if stat.S_ISDIR(s.st_mode) else f" {s.st_size} bytes, {s.st_nlink} links"
        self.note(what, own + size + "".join(f" {getattr(s, name)}" for name in more))


def put(path, content=b"content", mode=0o644):
    with open(path, "wb") as f:
        f.write(content)
    os.chmod(path, mode)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def as_other(function, *args, uid=OTHER, gid=OTHER, groups=()):
    """Does something as another user; its result as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            said = str(function(*args))
        except OSError as e:
            said = errno.errorcode.get(e.errno, str(e.errno))
        except BaseException as e:
            said = repr(e)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as f:
        said = f.read()
    os.waitpid(child, 0)
    return said


def called(name, *args):
    """A system call by its name in the C library."""
    args = [os.fsencode(a) if isinstance(a, str) else a for a in args]
    result = getattr(libc, name)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def renamed(old, new, flags):
    called("renameat2", -100, old, -100, new, flags)


def fallocated(fd, mode, offset, length):
    called("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


def called_utimens(path, atime, mtime):
    called("utimensat", -100, path, (ctypes.c_long * 4)(*atime, *mtime), 0)


def opened(path, flags, mode=0o666):
    os.close(os.open(path, flags, mode))


# --- names -----------------------------------------------------------------------------------------


@case()
def names_of_any_length_and_of_any_bytes(seen, d):
    for length in (1, 254, 255, 256, 1000):
        path = f"{d}/{'n' * length}"
        seen.call(f"create {length}", opened, path, os.O_CREAT | os.O_WRONLY)
        seen.call(f"stat {length}", lambda: os.stat(path).st_size)
        seen.call(f"mkdir {length}", os.mkdir, path + "d"[: length < 255])
        seen.call(f"link {length}", os.link, f"{d}/n", path[:-1] + "l")
        seen.call(f"rename {length}", os.rename, f"{d}/n", path[:-1] + "r")
        seen.call(f"rename back {length}", os.rename, path[:-1] + "r", f"{d}/n")
        seen.call(f"symlink {length}", os.symlink, "x", path[:-1] + "s")
        seen.call(f"unlink {length}", os.unlink, path)
        put(f"{d}/n")
    for length in (1, 255, 4095, 4096):
        seen.call(f"symlink to {length}", os.symlink, "x" * length, f"{d}/link{length}")
        seen.call(f"readlink of {length}", lambda: len(os.readlink(f"{d}/link{length}")))
    seen.call("symlink to nothing", os.symlink, "", f"{d}/empty")
    every = bytes(range(1, 256)).replace(b"/", b"")
    odd = [os.fsencode(d) + b"/" + every, os.fsencode(d) + b"/ \n\t\\\xff\xfe", os.fsencode(d) + b"/..."]
    for path in odd:
        put(path, b"odd")
        seen.note("read", get(path))
    seen.note("listed", sorted(n for n in os.listdir(os.fsencode(d)) if len(n) != 255 or n == every))


@case()
def deep_paths(seen, d):
    here = os.open(d, os.O_DIRECTORY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    # 8,000 bytes down: no path leads here any more, but this directory is open.
    seen.call("create", lambda: os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here)))
    seen.call("stat", lambda: os.stat("f", dir_fd=here).st_size)
    seen.call("rename", lambda: os.rename("f", "g", src_dir_fd=here, dst_dir_fd=here))
    seen.call("list", os.listdir, here)
    seen.call("unlink", lambda: os.unlink("g", dir_fd=here))
    os.close(here)


@case()
def what_has_no_name_or_another_kind(seen, d):
    put(f"{d}/file")
    os.mkdir(f"{d}/dir")
    os.mkdir(f"{d}/full")
    put(f"{d}/full/file")
    os.symlink("nowhere", f"{d}/dangling")
    os.symlink("loop", f"{d}/loop")
    os.symlink("dir", f"{d}/to_dir")
    names = ["file", "dir", "full", "dangling", "loop", "to_dir", "nothing", "file/below", "nothing/below",
             "loop/below", "dir/", "dir/.", "dir/..", "to_dir/", "file/", "nothing/"]
    # Those are in another case: here all is to stay where it is.
    succeed = [(name, "full/below") for name in ("file", "dir", "full", "dir/", "dangling", "loop", "to_dir", "file/")]
    succeed += [(name, "file") for name in ("dangling", "loop", "to_dir")] + [("full", "dir"), ("dir/", "dir")]
    flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR, "excl": os.O_CREAT | os.O_EXCL | os.O_WRONLY,
             "directory": os.O_DIRECTORY, "nofollow": os.O_NOFOLLOW, "path": os.O_PATH,
             "nofollow, path": os.O_PATH | os.O_NOFOLLOW, "trunc, r": os.O_RDONLY | os.O_TRUNC,
             "creat, directory": os.O_CREAT | os.O_DIRECTORY, "noatime": os.O_NOATIME}
    for name in names:
        path = f"{d}/{name}"
        for how, flag in flags.items():
            if name in ("nothing", "dangling") and flag & os.O_CREAT:
                continue
            seen.call(f"open {how} {name}", opened, path, flag)
        seen.call(f"unlink {name}", os.unlink, path) if name not in ("file", "dangling", "loop", "to_dir") else None
        seen.call(f"rmdir {name}", os.rmdir, path) if name not in ("dir", "dir/", "to_dir/") else None
        seen.call(f"mkdir {name}", os.mkdir, path) if name not in ("nothing", "nothing/") else None
        seen.call(f"readlink {name}", os.readlink, path)
        seen.call(f"truncate {name}", os.truncate, path, 3)
        seen.call(f"listdir {name}", os.listdir, path)
        seen.call(f"link {name}", os.link, path, f"{d}/linked", follow_symlinks=False)
        seen.call("unlink it", os.unlink, f"{d}/linked")
        seen.call(f"rename to itself {name}", os.rename, path, path)
        for other in ("file", "dir", "full", "nothing/x", "full/below", "dir/below/x", "loop/x"):
            if (name, other) not in succeed:
                seen.call(f"rename {name} to {other}", os.rename, path, f"{d}/{other}")
    seen.note("left", sorted(os.listdir(d)))
    seen.note("left in full", sorted(os.listdir(f"{d}/full")))


@case()
def renames(seen, d):
    for name in ("a", "b", "c"):
        put(f"{d}/{name}", name.encode())
    os.link(f"{d}/a", f"{d}/a2")
    seen.call("onto the same file", os.rename, f"{d}/a", f"{d}/a2")
    seen.note("both are there", sorted(os.listdir(d)))
    seen.call("over", os.rename, f"{d}/a", f"{d}/b")
    seen.stat("b", f"{d}/b")
    os.mkdir(f"{d}/x")
    os.mkdir(f"{d}/y")
    os.mkdir(f"{d}/x/below")
    put(f"{d}/x/below/f", b"deep")
    seen.call("over an empty directory", os.rename, f"{d}/x", f"{d}/y")
    seen.note("deep", get(f"{d}/y/below/f"))
    seen.call("into itself", os.rename, f"{d}/y", f"{d}/y/below/z")
    seen.call("into itself, at once", os.rename, f"{d}/y", f"{d}/y/z")
    seen.call("over what it is in", os.rename, f"{d}/y/below", f"{d}/y")
    seen.call("up", os.rename, f"{d}/y/below", f"{d}/below")
    seen.note("deep", get(f"{d}/below/f"))
    seen.call("noreplace", renamed, f"{d}/c", f"{d}/b", 1)
    seen.call("noreplace to a new name", renamed, f"{d}/c", f"{d}/c2", 1)
    seen.call("unknown flags", renamed, f"{d}/c2", f"{d}/b", 64)
    seen.call("of .", os.rename, f"{d}/below/.", f"{d}/n")
    seen.call("of ..", os.rename, f"{d}/below/..", f"{d}/n")
    seen.call("to .", os.rename, f"{d}/c2", f"{d}/below/.")
    seen.note("left", sorted(os.listdir(d)))


@case()
def rmdir_and_unlink(seen, d):
    os.mkdir(f"{d}/a")
    put(f"{d}/a/f")
    seen.call("not empty", os.rmdir, f"{d}/a")
    seen.call("unlink of a directory", os.unlink, f"{d}/a")
    seen.call("rmdir of a file", os.rmdir, f"{d}/a/f")
    seen.call("rmdir of .", os.rmdir, f"{d}/a/.")
    seen.call("rmdir of ..", os.rmdir, f"{d}/a/..")
    here = os.open(f"{d}/a", os.O_DIRECTORY)
    os.unlink(f"{d}/a/f")
    seen.call("rmdir", os.rmdir, f"{d}/a")
    seen.call("create in one that is gone", lambda: os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    seen.call("mkdir in one that is gone", lambda: os.mkdir("f", dir_fd=here))
    os.close(here)


@case()
def what_is_listed_while_it_is_removed(seen, d):
    for i in range(3000):
        put(f"{d}/{i}", b"")
    removed = 0
    with os.scandir(d) as entries:
        for entry in entries:
            os.unlink(entry.path)
            removed += 1
    seen.note("removed", removed)
    seen.note("left", os.listdir(d))


# --- content ---------------------------------------------------------------------------------------


@case()
def lengths_and_offsets(seen, d):
    put(f"{d}/f", b"0123456789")
    fd = os.open(f"{d}/f", os.O_RDWR)
    seen.call("truncate to less than nothing", os.truncate, f"{d}/f", -1)
    seen.call("ftruncate to less than nothing", os.ftruncate, fd, -1)
    seen.call("longer", os.ftruncate, fd, 100000)
    seen.note("zeros", os.pread(fd, 100, 50000) == bytes(100))
    seen.call("shorter", os.ftruncate, fd, 4)
    seen.note("content", os.pread(fd, 100, 0))
    seen.call("longer again", os.ftruncate, fd, 12)
    seen.note("content", os.pread(fd, 100, 0))
    seen.call("far", os.pwrite, fd, b"far", 1 << 40)
    seen.stat("far", f"{d}/f")
    seen.note("read far", os.pread(fd, 10, (1 << 40) - 2))
    seen.call("farther than any file", os.pwrite, fd, b"x", (1 << 63) - 1)
    seen.call("ftruncate farther than any file", os.ftruncate, fd, (1 << 63) - 1)
    seen.call("at less than nothing", lambda: os.pwrite(fd, b"x", -1))
    seen.call("seek to the end", os.lseek, fd, 0, os.SEEK_END)
    seen.call("seek before the beginning", os.lseek, fd, -1, os.SEEK_SET)
    seen.call("seek data past the end", os.lseek, fd, 1 << 50, os.SEEK_DATA)
    seen.call("write of nothing past the end", os.pwrite, fd, b"", 1 << 45)
    seen.stat("after that", f"{d}/f")
    os.close(fd)
    fd = os.open(f"{d}/f", os.O_RDONLY)
    seen.call("write to one open for reading", os.write, fd, b"x")
    seen.call("ftruncate of one open for reading", os.ftruncate, fd, 1)
    seen.call("truncating open for reading", opened, f"{d}/f", os.O_RDONLY | os.O_TRUNC)
    os.close(fd)
    fd = os.open(f"{d}/f", os.O_WRONLY)
    seen.call("read of one open for writing", os.read, fd, 1)
    os.close(fd)
    seen.call("read of a directory", lambda: os.read(os.open(d, os.O_RDONLY), 1))
    seen.call("truncate of a directory", os.truncate, d, 1)


@case()
def appending(seen, d):
    put(f"{d}/f", b"")
    pieces = 200

    def append(letter):
        fd = os.open(f"{d}/f", os.O_WRONLY | os.O_APPEND)
        for _ in range(pieces):
            os.write(fd, letter * 10)
        os.close(fd)

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = get(f"{d}/f")
    seen.note("length", len(content))
    seen.note("counts", [content.count(letter * 10) for letter in (b"a", b"b", b"c")])
    fd = os.open(f"{d}/f", os.O_RDWR | os.O_APPEND)
    seen.call("pwrite", os.pwrite, fd, b"END", 0)
    seen.note("end", get(f"{d}/f")[-3:])
    seen.note("position", os.lseek(fd, 0, os.SEEK_CUR))
    os.close(fd)


@case()
def mappings(seen, d):
    put(f"{d}/f", b"0" * 10000)
    fd = os.open(f"{d}/f", os.O_RDWR)
    mapped = mmap.mmap(fd, 10000)
    mapped[5000:5004] = b"here"
    seen.note("read", os.pread(fd, 4, 5000))
    os.pwrite(fd, b"there", 9000)
    seen.note("mapped", mapped[9000:9005])
    mapped.flush()
    with open(f"{d}/f", "rb") as again:
        again.seek(5000)
        seen.note("again", again.read(4))
    mapped.close()
    private = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
    private[0:4] = b"mine"
    seen.note("not written", os.pread(fd, 4, 0))
    private.close()
    os.close(fd)
    fd = os.open(f"{d}/f", os.O_RDONLY)
    try:
        mmap.mmap(fd, 10, prot=mmap.PROT_WRITE, flags=mmap.MAP_SHARED)
    except OSError as e:
        seen.note("for writing", errno.errorcode[e.errno])
    os.close(fd)


@case()
def copies_within_the_kernel(seen, d):
    put(f"{d}/f", bytes(range(256)) * 400)
    source, target = os.open(f"{d}/f", os.O_RDONLY), os.open(f"{d}/g", os.O_CREAT | os.O_RDWR)
    copied = 0
    while copied < 102400:
        copied += os.copy_file_range(source, target, 102400 - copied)
    seen.note("copy_file_range", get(f"{d}/g") == get(f"{d}/f"))
    os.ftruncate(target, 0)
    os.lseek(target, 0, os.SEEK_SET)
    copied = 0
    while copied < 102400:
        copied += os.sendfile(target, source, copied, 102400 - copied)
    seen.note("sendfile", get(f"{d}/g") == get(f"{d}/f"))
    reader, writer = os.pipe()
    os.splice(source, writer, 1000, offset_src=10)
    seen.note("splice", os.splice(reader, target, 1000, offset_dst=0))
    seen.note("spliced", os.pread(target, 3, 0))
    seen.call("onto itself", lambda: os.copy_file_range(target, target, 100, offset_src=0, offset_dst=50))
    seen.call("behind its end", lambda: os.copy_file_range(source, target, 100, offset_src=1 << 30))
    for fd in (source, target, reader, writer):
        os.close(fd)


@case()
def locks(seen, d):
    put(f"{d}/f")
    one, two = os.open(f"{d}/f", os.O_RDWR), os.open(f"{d}/f", os.O_RDWR)
    seen.call("flock", fcntl.flock, one, fcntl.LOCK_EX)
    seen.call("flock of another", fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    seen.call("unlock", fcntl.flock, one, fcntl.LOCK_UN)
    seen.call("flock then", fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(two, fcntl.LOCK_UN)
    fcntl.lockf(one, fcntl.LOCK_EX, 10)

    def another():
        fd = os.open(f"{d}/f", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 20)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)

    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            another()
            os.write(writer, b"done")
        except OSError as e:
            os.write(writer, errno.errorcode[e.errno].encode())
        os._exit(0)
    os.wait()
    seen.note("of another process", os.read(reader, 100))
    for fd in (one, two, reader, writer):
        os.close(fd)


# --- attributes ------------------------------------------------------------------------------------


@case()
def times_that_operations_change(seen, d):
    """Which of mtime and ctime of a file and of its directory move."""

    def moved(what, act, *paths):
        before = [os.stat(p, follow_symlinks=False) for p in paths]
        time.sleep(0.02)
        act()
        after = [os.stat(p, follow_symlinks=False) for p in paths]
        pairs = zip(before, after)
        seen.note(what, [(b.st_mtime_ns < a.st_mtime_ns, b.st_ctime_ns < a.st_ctime_ns) for b, a in pairs])

    f, g = f"{d}/f", f"{d}/g"
    put(f)
    fd = os.open(f, os.O_RDWR)
    moved("write", lambda: os.pwrite(fd, b"x", 0), f, d)
    moved("write of nothing", lambda: os.pwrite(fd, b"", 0), f, d)
    moved("ftruncate", lambda: os.ftruncate(fd, 3), f, d)
    moved("ftruncate to the same length", lambda: os.ftruncate(fd, 3), f, d)
    moved("truncate to the same length", lambda: os.truncate(f, 3), f, d)
    moved("open with O_TRUNC", lambda: opened(f, os.O_WRONLY | os.O_TRUNC), f, d)
    moved("open with O_TRUNC of an empty file", lambda: opened(f, os.O_WRONLY | os.O_TRUNC), f, d)
    moved("read", lambda: os.pread(fd, 10, 0), f, d)
    moved("chmod", lambda: os.chmod(f, 0o600), f, d)
    moved("chown to nobody", lambda: os.chown(f, -1, -1), f, d)
    moved("chown to the same", lambda: os.chown(f, os.getuid(), os.getgid()), f, d)
    moved("utime", lambda: os.utime(f, ns=(5, 7)), f, d)
    moved("link", lambda: os.link(f, g), f, d)
    moved("unlink of a link", lambda: os.unlink(g), f, d)
    moved("mkdir", lambda: os.mkdir(f"{d}/new"), d)
    moved("rmdir", lambda: os.rmdir(f"{d}/new"), d)
    moved("create", lambda: put(g), d)
    moved("open of what is there with O_CREAT", lambda: opened(g, os.O_CREAT | os.O_WRONLY), g, d)
    moved("symlink", lambda: os.symlink("x", f"{d}/s"), d)
    moved("lchown", lambda: os.lchown(f"{d}/s", os.getuid(), -1), f"{d}/s")
    os.mkdir(f"{d}/x")
    moved("rename of a file", lambda: os.rename(g, f"{d}/x/g"), d, f"{d}/x")
    moved("rename of a directory", lambda: os.rename(f"{d}/x", f"{d}/y"), d)
    mapped = mmap.mmap(fd, 0) if os.fstat(fd).st_size else None
    seen.note("mapped", mapped)
    os.close(fd)


@case()
def mtimes_that_are_set(seen, d):
    put(f"{d}/f")
    os.symlink("f", f"{d}/s")

    def mtime(name="f"):
        return os.stat(f"{d}/{name}", follow_symlinks=False).st_mtime_ns

    for ns in (0, 1, -1, 10**9 - 1, (1 << 31) * 10**9, (1 << 33) * 10**9 + 5, -(1 << 31) * 10**9, -1_500_000_000):
        seen.call(f"utime {ns}", lambda: os.utime(f"{d}/f", ns=(0, ns)))
        seen.note("is", mtime())
    for seconds in (-(1 << 63), 1 - (1 << 63), (1 << 63) - 1, -(1 << 31) - 1, 1 << 40):
        seen.call(f"utime {seconds} s", called_utimens, f"{d}/f", (0, OMIT), (seconds, 999_999_999))
        seen.note("is", mtime())
    seen.call("of a link", lambda: os.utime(f"{d}/s", ns=(7, 8), follow_symlinks=False))
    seen.note("link", mtime("s"))
    seen.call("of a directory", lambda: os.utime(d, ns=(7, 8)))
    seen.note("directory", os.stat(d).st_mtime_ns)
    fd = os.open(f"{d}/f", os.O_RDONLY)
    seen.call("of an open file", lambda: os.utime(fd, ns=(9, 10)))
    seen.note("is", os.fstat(fd).st_mtime_ns)
    os.close(fd)
    fd = os.open(f"{d}/f", os.O_RDWR)
    os.write(fd, b"more")
    os.utime(fd, ns=(11, 12))
    os.close(fd)
    seen.note("after the close", mtime())
    # What is written through a mapping comes later; the time that was set stays.
    fd = os.open(f"{d}/f", os.O_RDWR)
    mapped = mmap.mmap(fd, 0)
    mapped[0:1] = b"m"
    mapped.flush()
    os.utime(fd, ns=(13, 14))
    mapped.close()
    os.close(fd)
    time.sleep(0.1)
    seen.note("after a mapping", mtime())


@case()
def links_to_a_file(seen, d):
    put(f"{d}/f")
    os.link(f"{d}/f", f"{d}/g")
    os.mkdir(f"{d}/x")
    os.link(f"{d}/g", f"{d}/x/h")
    for name in ("f", "g", "x/h"):
        seen.stat(name, f"{d}/{name}")
    seen.note("one number", len({os.stat(f"{d}/{n}").st_ino for n in ("f", "g", "x/h")}))
    os.chmod(f"{d}/f", 0o600)
    with open(f"{d}/g", "ab") as f:
        f.write(b" more")
    seen.stat("h", f"{d}/x/h")
    seen.note("h", get(f"{d}/x/h"))
    os.unlink(f"{d}/f")
    os.rename(f"{d}/g", f"{d}/x/h")
    seen.note("left", sorted(os.listdir(f"{d}/x")))
    seen.stat("g", f"{d}/g")
    os.symlink("nowhere", f"{d}/s")
    seen.call("link to a link", os.link, f"{d}/s", f"{d}/s2", follow_symlinks=False)
    seen.call("its target", os.readlink, f"{d}/s2")
    seen.stat("s", f"{d}/s")
    seen.call("link over a name", os.link, f"{d}/g", f"{d}/s")
    seen.call("link to a directory", os.link, f"{d}/x", f"{d}/y")
    fd = os.open(f"{d}/g", os.O_RDONLY)
    seen.call("link to an open file", os.link, f"/proc/self/fd/{fd}", f"{d}/again", follow_symlinks=True)
    os.unlink(f"{d}/g")
    seen.note("links", os.fstat(fd).st_nlink)
    os.close(fd)


@case()
def permission_bits(seen, d):
    put(f"{d}/f")
    os.mkdir(f"{d}/x")
    for name in ("f", "x"):
        for mode in (0o7777, 0o0000, 0o4755, 0o2755, 0o1755, 0o6644, 0o644):
            seen.call(f"chmod {mode:o}", os.chmod, f"{d}/{name}", mode)
            seen.stat(name, f"{d}/{name}")
    for umask in (0, 0o027, 0o777):
        before = os.umask(umask)
        seen.call("create", opened, f"{d}/f{umask:o}", os.O_CREAT | os.O_WRONLY, 0o6777)
        seen.call("mkdir", os.mkdir, f"{d}/x{umask:o}", 0o7777)
        os.umask(before)
        seen.stat("file", f"{d}/f{umask:o}")
        seen.stat("directory", f"{d}/x{umask:o}")
        os.chmod(f"{d}/x{umask:o}", 0o755)
    fd = os.open(f"{d}/only", os.O_CREAT | os.O_RDWR, 0)
    seen.call("write to a file that nobody may open", os.write, fd, b"x")
    seen.note("read", os.pread(fd, 1, 0))
    os.close(fd)


# --- several users ---------------------------------------------------------------------------------


def write_to(path):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"x")
    os.close(fd)
    return "done"


def map_to(path):
    fd = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(fd, 0)
    mapped[0:1] = b"x"
    mapped.close()
    os.close(fd)
    return "done"


def cut(path):
    os.truncate(path, 1)
    return "done"


def cut_open(path):
    fd = os.open(path, os.O_WRONLY)
    os.ftruncate(fd, 1)
    os.close(fd)
    return "done"


@case(needs_root=True)
def writing_takes_away_setuid_and_setgid(seen, d):
    """By those who do not own the file, too: there nobody but shardfs may do it."""
    changes = {
        "write": write_to,
        "mapping": map_to,
        "truncate": cut,
        "ftruncate": cut_open,
        "O_TRUNC": lambda path: opened(path, os.O_WRONLY | os.O_TRUNC),
        "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND),
    }
    # Setgid without execution for the group, which means nothing, is left to the kernel's FUSE.
    for mode in (0o4777, 0o2777, 0o6777, 0o4766):
        for what, change in changes.items():
            for uid, gid in ((OTHER, OTHER), (GROUP, OTHER), (0, 0)):
                path = f"{d}/f"
                put(path)
                os.chown(path, GROUP, GROUP)
                os.chmod(path, mode)
                seen.note(f"{what} by {uid}:{gid} to {mode:o}", as_other(change, path, uid=uid, gid=gid))
                seen.stat("then", path)
                os.unlink(path)


@case(needs_root=True)
def changing_the_owner_takes_away_setuid_and_setgid(seen, d):
    for mode in (0o6777, 0o6767, 0o2755, 0o4644):
        for uid, gid, groups in ((0, 0, []), (OTHER, OTHER, [GROUP]), (OTHER, OTHER, [])):
            for to in ((-1, -1), (OTHER, -1), (-1, GROUP), (-1, OTHER), (0, 0)):
                path = f"{d}/f"
                put(path)
                os.chown(path, OTHER, OTHER)
                os.chmod(path, mode)
                what = f"{mode:o} to {to} by {uid} {groups}"
                seen.note(what, as_other(os.chown, path, *to, uid=uid, gid=gid, groups=groups))
                seen.stat("then", path)
                os.unlink(path)


@case(needs_root=True)
def permissions_that_only_members_may_give(seen, d):
    for group in (OTHER, GROUP):
        for groups in ([], [GROUP]):
            put(f"{d}/f")
            os.chown(f"{d}/f", OTHER, group)
            seen.note("chmod g+s", as_other(os.chmod, f"{d}/f", 0o2755, groups=groups))
            seen.stat(f"group {group}, caller in {groups}", f"{d}/f")
            os.unlink(f"{d}/f")
    os.mkdir(f"{d}/x")
    os.chown(f"{d}/x", 0, GROUP)
    os.chmod(f"{d}/x", 0o2777)
    seen.note("create", as_other(opened, f"{d}/x/f", os.O_CREAT | os.O_WRONLY, 0o2775))
    seen.stat("in a setgid directory", f"{d}/x/f")
    seen.note("mkdir", as_other(os.mkdir, f"{d}/x/y"))
    seen.stat("directory in it", f"{d}/x/y")
    seen.note("symlink", as_other(os.symlink, "f", f"{d}/x/s"))
    seen.stat("link in it", f"{d}/x/s")


@case(needs_root=True)
def sticky_directories(seen, d):
    os.mkdir(f"{d}/x")
    os.chmod(f"{d}/x", 0o1777)
    for name, owner in (("mine", OTHER), ("others", GROUP)):
        put(f"{d}/x/{name}", mode=0o666)
        os.chown(f"{d}/x/{name}", owner, owner)
    as_other(opened, f"{d}/x/new", os.O_CREAT | os.O_WRONLY)
    for what, act in {
        "unlink of others": lambda: os.unlink(f"{d}/x/others"),
        "rename of others": lambda: os.rename(f"{d}/x/others", f"{d}/x/o"),
        "rename over others": lambda: os.rename(f"{d}/x/mine", f"{d}/x/others"),
        "rename": lambda: os.rename(f"{d}/x/mine", f"{d}/x/m"),
        "unlink": lambda: os.unlink(f"{d}/x/m"),
        "link to others": lambda: os.link(f"{d}/x/others", f"{d}/x/l"),
    }.items():
        seen.note(what, as_other(act))
    seen.note("left", sorted(os.listdir(f"{d}/x")))


@case(needs_root=True)
def times_that_others_set(seen, d):
    for mode in (0o644, 0o666):
        put(f"{d}/f", mode=mode)
        seen.note("now", as_other(lambda: os.utime(f"{d}/f")))
        seen.note("then", as_other(lambda: os.utime(f"{d}/f", (1, 2))))
        seen.note("mtime omitted", as_other(lambda: called_utimens(f"{d}/f", (0, NOW), (0, OMIT))))
        seen.note("both omitted", as_other(lambda: called_utimens(f"{d}/f", (0, OMIT), (0, OMIT))))
        os.unlink(f"{d}/f")


@case(needs_root=True)
def a_descriptor_keeps_its_rights(seen, d):
    """What was opened may be used after permissions are taken away."""

    def use():
        fd = os.open(f"{d}/f", os.O_RDWR)
        os.fchmod(fd, 0)
        told = [os.pwrite(fd, b"more", 0), os.pread(fd, 4, 0), os.ftruncate(fd, 2), os.fsync(fd)]
        try:
            os.open(f"{d}/f", os.O_RDONLY)
        except OSError as e:
            told.append(errno.errorcode[e.errno])
        return told

    put(f"{d}/f", mode=0o600)
    os.chown(f"{d}/f", OTHER, OTHER)
    seen.note("used", as_other(use))
    seen.stat("then", f"{d}/f")


def run(function, root):
    seen, d = Seen(), f"{root}/{function.__name__}"
    os.mkdir(d)
    os.chmod(d, 0o777)
    function(seen, d)
    return [line.replace(root, "") for line in seen.lines]


def main():
    if sys.argv[4:]:
        uid = int(sys.argv[4])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for function in cases:
        name = function.__name__.replace("_", " ")
        try:
            mount, twin = (run(function, root) for root in roots)
        except Exception as e:  # the case itself
            print(f"FAIL {name}: {e!r} in line {e.__traceback__.tb_next.tb_next.tb_lineno}", flush=True)
            continue
        wrong = [f"{a} (plain: {b})" for a, b in zip(mount, twin) if a != b]
        if len(mount) != len(twin):
            wrong.append(f"{len(mount)} results, plain: {len(twin)}")
        print(f"FAIL {name}: {'; '.join(wrong)}" if wrong else f"ok {name}", flush=True)


if __name__ == "__main__":
    main()
