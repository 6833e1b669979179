"""What holds of a file that is renamed while somebody has it open, whatever kind of name it had and gets.

    moved_open.py MOUNT SOURCE

MOUNT shows the sample array `waves` of SOURCE and can be written to; both may be one ordinary directory. A line
for each case: "ok NAME" or "FAIL NAME: why".
"""

import errno
import mmap
import os
import sys
import time
import traceback

here, source = sys.argv[1], sys.argv[2]
KINDS = {
    "passed through": ["waves/one.bin", "waves/two.bin"],
    "beside chunks": ["waves/c/0/0/one.tmp", "waves/c/0/0/two.tmp"],
    "a chunk": ["waves/c/0/0/2", "waves/c/1/1/3"],
}


def at(name):
    return os.path.join(here, name)


def get(name):
    with open(at(name), "rb") as f:
        return f.read()


def put(name, content):
    with open(at(name), "wb") as f:
        f.write(content)


def remove(name):
    if os.path.exists(at(name)):
        os.unlink(at(name))


def stored(name, content):
    """What is passed through is in the source once fsync has returned."""
    if name in KINDS["passed through"]:
        with open(os.path.join(source, name), "rb") as f:
            assert f.read() == content, "the source has something else"


def goes_on(fd, name, content):
    """The descriptor is that of the file which is called `name`, and both have this content."""
    size = len(content)
    assert os.pread(fd, 100, 0) == content, (os.pread(fd, 100, 0), content)
    assert get(name) == content, (get(name), content)
    assert os.fstat(fd).st_size == os.stat(at(name)).st_size == size
    assert os.fstat(fd).st_ino == os.stat(at(name)).st_ino
    assert os.fstat(fd).st_nlink == 1


def renamed(before, after):
    put(before, b"before")
    fd = os.open(at(before), os.O_RDWR)
    os.pwrite(fd, b"BEF", 0)
    os.rename(at(before), at(after))
    assert not os.path.exists(at(before))
    goes_on(fd, after, b"BEFore")
    os.pwrite(fd, b"-after", 6)
    goes_on(fd, after, b"BEFore-after")
    os.ftruncate(fd, 9)
    os.fsync(fd)
    goes_on(fd, after, b"BEFore-af")
    stored(after, b"BEFore-af")
    time.sleep(1.2)
    os.pwrite(fd, b"x", 0)
    goes_on(fd, after, b"xEFore-af")
    with mmap.mmap(fd, 0) as pages:
        pages[1:3] = b"yz"
        pages.flush()
    goes_on(fd, after, b"xyzore-af")
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    os.pwrite(again, b"A", 8)
    os.close(again)
    # A new file of the old name is none of its own.
    put(before, b"another")
    os.pwrite(fd, b"B", 7)
    assert get(before) == b"another"
    os.fsync(fd)
    os.close(fd)
    assert get(after) == b"xyzore-BA"
    stored(after, b"xyzore-BA")
    time.sleep(1.2)
    assert get(after) == b"xyzore-BA" and get(before) == b"another"


def replaced(before, after):
    """The file that had the name goes on being what it was, for whoever has it open."""
    put(before, b"new")
    put(after, b"old one")
    old, new = os.open(at(after), os.O_RDWR), os.open(at(before), os.O_RDWR)
    os.rename(at(before), at(after))
    os.pwrite(old, b"OLD", 0)
    os.pwrite(new, b"NEW", 0)
    assert os.pread(old, 100, 0) == b"OLD one"
    assert os.fstat(old).st_nlink == 0
    goes_on(new, after, b"NEW")
    os.close(old)
    os.close(new)
    time.sleep(1.2)
    assert get(after) == b"NEW"


def there_and_back(before, after):
    put(before, b"content")
    fd = os.open(at(before), os.O_RDWR)
    reader = os.open(at(before), os.O_RDONLY)
    for number in b"12345":
        for name, there in (before, after), (after, before):
            os.rename(at(name), at(there))
            os.pwrite(fd, b"%c%c" % (number, there[-1].encode()), 0)
            content = b"%c%cntent" % (number, there[-1].encode())
            goes_on(fd, there, content)
            assert os.pread(reader, 100, 0) == content
    os.unlink(at(before))
    os.pwrite(fd, b"!!", 0)
    assert os.pread(fd, 100, 0) == os.pread(reader, 100, 0) == b"!!ntent"
    assert os.fstat(fd).st_nlink == 0
    os.fsync(fd)
    os.close(fd)
    os.close(reader)
    assert not os.path.exists(at(before)) and not os.path.exists(at(after))


def unlinked(before, after):
    put(before, b"content")
    fd = os.open(at(before), os.O_RDWR)
    os.rename(at(before), at(after))
    os.unlink(at(after))
    os.pwrite(fd, b"CON", 0)
    assert os.pread(fd, 100, 0) == b"CONtent"
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
    assert not os.path.exists(at(after))


def refused(errno, act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        assert error.errno == errno, error
    else:
        raise AssertionError("it is not refused")


def what_cannot_follow_its_file_is_told_so():
    for one, other in ("waves/one.bin", "waves/c/0/0/two.tmp"), ("waves/c/0/0/one.tmp", "waves/two.bin"):
        put(one, b"content")
        fd = os.open(at(one), os.O_RDWR)
        os.link(at(one), at(other))
        os.pwrite(fd, b"CON", 0)
        assert get(one) == b"CONtent" and get(other) == b"content", "a link between the kinds is a copy"
        os.unlink(at(one))
        refused(errno.ESTALE, os.pwrite, fd, b"lost", 0)
        refused(errno.ESTALE, os.ftruncate, fd, 0)
        assert os.pread(fd, 100, 0) == b"CONtent"
        os.close(fd)
        assert get(other) == b"content"
        os.unlink(at(other))
    document = get("waves/zarr.json")
    for name in "waves/one.bin", "waves/c/0/0/one.tmp":
        put(name, document.replace(b"counts", b"photons"))
        fd = os.open(at(name), os.O_RDWR)
        os.rename(at(name), at("waves/zarr.json"))
        refused(errno.ESTALE, os.pwrite, fd, b"lost", 0)
        os.close(fd)
        assert b"photons" in get("waves/zarr.json")
    put("waves/c/0/0/one.tmp", b"content")
    os.link(at("waves/c/0/0/one.tmp"), at("waves/c/0/0/two.tmp"))
    refused(errno.EXDEV, os.rename, at("waves/c/0/0/one.tmp"), at("waves/one.bin"))
    os.unlink(at("waves/c/0/0/one.tmp"))
    os.unlink(at("waves/c/0/0/two.tmp"))


def report(name, case, *arguments):
    try:
        case(*arguments)
        print("ok", name, flush=True)
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        lines = [line.strip() for line in lines if not line.strip().startswith("^")]
        print("FAIL", name + ":", " / ".join(lines[-4:]), flush=True)


for case in renamed, replaced, there_and_back, unlinked:
    for first, (before, _) in KINDS.items():
        for second, (_, after) in KINDS.items():
            name = f"{first} to {second}, {case.__name__.replace('_', ' ')}"
            report(name, case, before, after)
            remove(before)
            remove(after)
if here != source:
    report("what cannot follow its file is told so", what_cannot_follow_its_file_is_told_so)
