"""What holds of files that are passed through, and of whoever has one open.

    open_files.py DIRECTORY OUTSIDE

DIRECTORY is looked at; OUTSIDE is the same directory by another way (the source of the mount), in which others
change things. Both may be one ordinary directory: the cases hold there, too. A line for each case:
"ok NAME" or "FAIL NAME: why".
"""

import mmap
import os
import stat
import sys
import tempfile
import time
import traceback

here, outside = sys.argv[1], sys.argv[2]
writable = os.access(here, os.W_OK) and not os.statvfs(here).f_flag & os.ST_RDONLY
cases = []


def case(needs_writing=True):
    def add(function):
        if writable or not needs_writing:
            cases.append(function)
        return function

    return add


def settle():
    """Names are believed for a second."""
    if here != outside:
        time.sleep(1.2)


def at(name):
    return os.path.join(here, name)


def put(name, content, where=None):
    with open(os.path.join(where or here, name), "wb") as f:
        f.write(content)


def get(name):
    with open(at(name), "rb") as f:
        return f.read()


def read(fd):
    return os.pread(fd, 100, 0)


def replace_outside(name, content):
    put("new~", content, outside)
    os.rename(os.path.join(outside, "new~"), os.path.join(outside, name))


@case(needs_writing=False)
def a_name_that_is_no_link_any_more_is_looked_up_again():
    os.symlink("nowhere", os.path.join(outside, "s"))
    assert stat.S_ISLNK(os.lstat(at("s")).st_mode)
    replace_outside("s", b"a file")
    assert get("s") == b"a file"


@case()
def an_open_file_outlives_its_name():
    put("f", b"before")
    fd = os.open(at("f"), os.O_RDWR)
    os.unlink(at("f"))
    assert read(fd) == b"before"
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"after!!", 0)
    os.ftruncate(fd, 6)
    os.fchmod(fd, 0o600)
    os.fsync(fd)
    assert read(fd) == b"after!"
    assert os.fstat(fd).st_size == 6
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    with open(f"/proc/self/fd/{fd}", "rb") as again:
        assert again.read() == b"after!"
    os.close(fd)
    assert not os.path.exists(at("f"))


@case()
def what_is_done_to_an_old_descriptor_is_not_done_to_the_new_file_of_that_name():
    for way in "unlink", "rename":
        put("f", b"the old one")
        os.chmod(at("f"), 0o644)
        fd = os.open(at("f"), os.O_RDWR)
        if way == "unlink":
            os.unlink(at("f"))
            put("f", b"new file")
        else:
            put("g", b"new file")
            os.rename(at("g"), at("f"))
        before = os.stat(at("f"))
        assert before.st_ino != os.fstat(fd).st_ino
        os.ftruncate(fd, 3)
        os.fchmod(fd, 0o600)
        os.utime(fd, (1, 2))
        os.fchown(fd, 1, 1)
        os.pwrite(fd, b"THE", 0)
        os.utime(fd, (1, 2))
        old, new = os.fstat(fd), os.stat(at("f"))
        assert (old.st_size, stat.S_IMODE(old.st_mode), old.st_nlink) == (3, 0o600, 0), old
        assert (old.st_mtime, old.st_uid, old.st_gid) == (2, 1, 1), old
        same = "st_size st_mode st_uid st_gid st_mtime_ns st_ino st_nlink".split()
        assert all(getattr(before, field) == getattr(new, field) for field in same), (before, new)
        assert read(fd) == b"THE" and get("f") == b"new file"
        os.close(fd)


@case()
def a_reader_goes_on_reading_what_was_replaced():
    put("f", b"x" * 5000)
    with open(at("f"), "rb") as f:
        pages = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        put("g", b"y" * 5000)
        os.rename(at("g"), at("f"))
        assert get("f") == b"y" * 5000
        assert f.read() == b"x" * 5000
        assert pages[:] == b"x" * 5000
        assert os.fstat(f.fileno()).st_nlink == 0
        pages.close()
    assert get("f") == b"y" * 5000


@case()
def temporary_files_without_a_name():
    with tempfile.TemporaryFile(dir=here) as f:
        f.write(b"abc")
        f.seek(0)
        assert f.read() == b"abc"
    with tempfile.NamedTemporaryFile(dir=here) as f:
        f.write(b"abc")
        f.flush()
        with open(f.name, "rb") as again:
            assert again.read() == b"abc"
    assert os.listdir(here) == ["zarr.json"] or here == outside


@case()
def many_generations_of_one_name_stay_apart():
    fds = []
    for number in range(20):
        put("g", b"%03d" % number)
        os.rename(at("g"), at("f"))
        fds.append(os.open(at("f"), os.O_RDONLY))
    assert [read(fd) for fd in fds] == [b"%03d" % number for number in range(20)]
    assert len({os.fstat(fd).st_ino for fd in fds}) == 20
    assert [os.fstat(fd).st_nlink for fd in fds] == [0] * 19 + [1]
    for fd in fds:
        os.close(fd)


@case()
def hard_links_are_one_file():
    put("f", b"one")
    os.link(at("f"), at("g"))
    f, g = os.stat(at("f")), os.stat(at("g"))
    assert (f.st_ino, f.st_nlink, g.st_nlink) == (g.st_ino, 2, 2), (f, g)
    put("f", b"other")
    assert get("g") == b"other"
    os.rename(at("f"), at("g"))
    assert sorted(os.listdir(here))[:2] == ["f", "g"], "two names of one file stay"
    fd = os.open(at("f"), os.O_RDONLY)
    os.unlink(at("f"))
    assert os.fstat(fd).st_nlink == 1
    put("f", b"new")
    assert read(fd) == b"other" and get("g") == b"other" and get("f") == b"new"
    os.unlink(at("g"))
    assert os.fstat(fd).st_nlink == 0 and read(fd) == b"other"
    os.close(fd)


@case()
def a_renamed_file_stays_the_same_one():
    put("f", b"content")
    fd = os.open(at("f"), os.O_RDWR)
    ino = os.fstat(fd).st_ino
    os.rename(at("f"), at("g"))
    put("f", b"another")
    os.pwrite(fd, b"CON", 0)
    assert get("g") == b"CONtent" and get("f") == b"another"
    assert os.stat(at("g")).st_ino == ino != os.stat(at("f")).st_ino
    os.mkdir(at("d"))
    os.rename(at("g"), at("d/g"))
    os.rename(at("d"), at("e"))
    os.pwrite(fd, b"tent", 0)
    assert get("e/g") == b"tentent" and os.stat(at("e/g")).st_ino == ino
    os.unlink(at("e/g"))
    os.rmdir(at("e"))
    assert os.fstat(fd).st_nlink == 0 and read(fd) == b"tentent"
    os.close(fd)


@case(needs_writing=False)
def a_reader_goes_on_reading_what_others_replace():
    put("f", b"old" * 3000, outside)
    settle()
    fd = os.open(at("f"), os.O_RDONLY)
    pages = mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
    replace_outside("f", b"new" * 3000)
    settle()
    assert get("f") == b"new" * 3000
    assert os.fstat(fd).st_ino != os.stat(at("f")).st_ino
    assert os.pread(fd, 9000, 0) == b"old" * 3000
    assert pages[:] == b"old" * 3000
    assert os.fstat(fd).st_nlink == 0
    replace_outside("f", b"newer")
    settle()
    assert get("f") == b"newer"
    os.unlink(os.path.join(outside, "f"))
    settle()
    assert not os.path.exists(at("f"))
    assert os.pread(fd, 9000, 0) == b"old" * 3000
    os.close(fd)


@case(needs_writing=False)
def a_file_that_others_append_to_is_followed():
    put("f", b"one\n", outside)
    settle()
    fd = os.open(at("f"), os.O_RDONLY)
    assert read(fd) == b"one\n"
    with open(os.path.join(outside, "f"), "ab") as f:
        f.write(b"two\n")
    settle()
    assert os.stat(at("f")).st_size == 8
    assert read(fd) == b"one\ntwo\n"
    os.close(fd)


@case(needs_writing=False)
def a_change_that_keeps_length_and_date_is_seen():
    put("f", b"before", outside)
    path = os.path.join(outside, "f")
    os.utime(path, (1000, 1000))
    settle()
    assert get("f") == b"before"
    time.sleep(0.05)
    with open(path, "r+b") as f:
        f.write(b"after!")
    os.utime(path, (1000, 1000))
    settle()
    assert get("f") == b"after!"
    settle()
    assert get("f") == b"after!"


@case(needs_writing=False)
def names_that_others_link_are_one_file():
    put("f", b"one", outside)
    settle()
    fd = os.open(at("f"), os.O_RDONLY)
    os.link(os.path.join(outside, "f"), os.path.join(outside, "g"))
    settle()
    assert os.stat(at("g")).st_ino == os.fstat(fd).st_ino
    assert os.stat(at("f")).st_nlink == 2
    os.unlink(os.path.join(outside, "f"))
    settle()
    assert os.stat(at("g")).st_ino == os.fstat(fd).st_ino
    assert os.fstat(fd).st_nlink == 1
    os.close(fd)


def clean():
    for directory, _, names in os.walk(outside, topdown=False):
        for name in names:
            if name != "zarr.json":
                os.unlink(os.path.join(directory, name))
        if directory != outside:
            os.rmdir(directory)
    settle()


chosen = sys.argv[3:]
for function in cases:
    name = function.__name__.replace("_", " ")
    if chosen and function.__name__ not in chosen:
        continue
    try:
        function()
        print("ok", name, flush=True)
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        print("FAIL", name + ":", " / ".join(line.strip() for line in lines[-4:]), flush=True)
    clean()
