#!/usr/bin/env python3
"""Permissions: every operation as several users, in a mount and in the same tree of plain files, must end alike.

    access.py make SOURCE TWIN      both trees, with shards in SOURCE and chunk files in TWIN; as root
    access.py compare MOUNT TWIN    one line for each group of operations: "ok ..." or "FAIL ..."

What is compared: errno or success, and afterwards owner, group, permissions and access control list of what the
operation was about.  shards.py makes the arrays.
"""
import errno
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ALICE, BOB, CAROL, PROJECT = 21001, 21002, 21003, 22000
# Owner, member of the project, anybody else, and root.
USERS = {
    "owner": (ALICE, ALICE, [PROJECT]),
    "member": (BOB, BOB, [PROJECT]),
    "other": (CAROL, CAROL, []),
    "root": (0, 0, [0]),
}
MODES = (0o000, 0o444, 0o600, 0o604, 0o640, 0o644, 0o660, 0o666)
DIRECTORY_MODES = (0o700, 0o711, 0o744, 0o750, 0o755, 0o770, 0o777, 0o1777, 0o2770, 0o2777, 0o3777)
ACLS = {
    # The mask, shown as the group's permissions, is more than the group has.
    "mask": "u::rw-,g::---,u:%d:rw-,m::rw-,o::---" % CAROL,
    "named_user": "u::rw-,g::---,u:%d:r--,m::r--,o::---" % CAROL,
    "denied_user": "u::rw-,g::r--,u:%d:---,m::r--,o::r--" % BOB,
    "named_group": "u::rw-,g::---,g:%d:rw-,m::rw-,o::---" % BOB,
    "denied_group": "u::rw-,g::r--,g:%d:---,m::r--,o::rw-" % CAROL,
}
DEFAULT_ACL = "u::rwx,g::r-x,u:%d:rwx,m::rwx,o::---" % CAROL


def setfacl(acl, path, *options):
    subprocess.run(["setfacl", *options, "-m", acl, path], check=True)


def for_directories(acl):
    """The same with search permission wherever there is another one."""
    return ",".join(e[:-1] + ("x" if e[-3:] != "---" else "-") for e in acl.split(","))


def own(path, uid=ALICE, gid=PROJECT, mode=None):
    os.chown(path, uid, gid)
    if mode is not None:
        os.chmod(path, mode)


def write(path, mode, data=b"content"):
    with open(path, "wb") as f:
        f.write(data)
    own(path, mode=mode)


def make_plain(root):
    """Files and directories that are no part of an array."""
    os.mkdir(f"{root}/files")
    os.mkdir(f"{root}/directories")
    for mode in MODES:
        write(f"{root}/files/{mode:o}", mode)
    write(f"{root}/files/6777", 0o6777)
    for name, acl in ACLS.items():
        write(f"{root}/files/{name}", 0o600)
        setfacl(acl, f"{root}/files/{name}")
    for name in [f"{mode:o}" for mode in DIRECTORY_MODES] + list(ACLS) + ["inherited"]:
        path = f"{root}/directories/{name}"
        os.mkdir(path)
        for child in ("one", "two"):
            write(f"{path}/{child}", 0o644)
        os.mkdir(f"{path}/below")
        own(f"{path}/below")
        write(f"{path}/below/file", 0o644)
        own(path, mode=0o770)
        if name in ACLS:
            setfacl(for_directories(ACLS[name]), path)
        elif name == "inherited":
            setfacl(DEFAULT_ACL, path, "-d")
            os.chmod(path, 0o2777)
        else:
            os.chmod(path, int(name, 8))
    os.symlink("../files/600", f"{root}/files/link")
    os.symlink("directories/700", f"{root}/link")
    # In a directory that all may write to: names in it are free.
    own(f"{root}/files", mode=0o777)
    own(f"{root}/directories", mode=0o755)


ARRAYS = ["plain", "array_700", "c_700", "c_711", "c_770", "c_mask", "c_sticky", "shard_600", "shard_640", "shard_644"]
ARRAYS += [f"shard_{name}" for name in ACLS]
LINKS = ["c_to_closed", "c_to_open", "c_to_closed_above", "shard_to_closed", "shard_to_open", "document_to_closed"]


def permit_array(root, name, shards):
    """Owner and permissions of an array, whose files that are shards, or chunks of them, are `shards`."""
    at = f"{root}/arrays/{name}"
    for path in [at, f"{at}/c", f"{at}/zarr.json", *shards]:
        own(path, mode=0o755 if os.path.isdir(path) else 0o644)
    kind, _, what = name.partition("_")
    targets = {"array": [at], "c": [f"{at}/c"], "shard": shards}.get(kind, [])
    for path in targets:
        if what in ACLS:
            setfacl(for_directories(ACLS[what]) if kind == "c" else ACLS[what], path)
        else:
            os.chmod(path, 0o1777 if what == "sticky" else int(what, 8))


def make_links(root):
    """Arrays of CAROL that lead to what is somebody else's."""
    for closed, open_ in (("closed", 0o700), ("open", 0o755)):
        at = f"{root}/{closed}"
        shutil.copytree(f"{root}/arrays/plain", f"{at}/array")
        shutil.move(f"{at}/array/c", f"{at}/c")
        for directory, _, files in os.walk(at):
            own(directory, mode=0o755)
            for name in files:
                own(f"{directory}/{name}", mode=0o644)
        os.chmod(at, open_)
    for name in LINKS:
        at = f"{root}/links/{name}"
        shutil.copytree(f"{root}/arrays/plain", at)
        target = "closed" if "closed" in name else "open"
        if name == "c_to_closed_above":
            shutil.rmtree(f"{at}/c")
            # The directory that it ends at is open, one on the way is not.
            os.symlink("../../closed/c", f"{at}/c")
        elif name.startswith("c_"):
            shutil.rmtree(f"{at}/c")
            os.symlink(f"../../{target}/c", f"{at}/c")
        elif name.startswith("shard_"):
            for shard in os.listdir(f"{at}/c"):
                os.unlink(f"{at}/c/{shard}")
                os.symlink(f"../../../{target}/c/{shard}", f"{at}/c/{shard}")
        else:
            os.unlink(f"{at}/zarr.json")
            os.symlink(f"../../{target}/array/zarr.json", f"{at}/zarr.json")
        for path in (at, f"{at}/c", f"{at}/zarr.json"):
            if not os.path.islink(path):
                own(path, CAROL, CAROL, 0o755 if os.path.isdir(path) else 0o644)


def make(source, twin):
    shards = [sys.executable, f"{HERE}/shards.py", "array"]
    for root in (source, twin):
        os.makedirs(f"{root}/arrays")
        os.mkdir(f"{root}/links")
        os.chmod(root, 0o755)
        make_plain(root)
    for name in ARRAYS:
        subprocess.run([*shards, f"{source}/arrays/{name}", "5", "--only", "0,1,2"], check=True)
        shutil.copytree(f"{source}/arrays/{name}", f"{twin}/arrays/{name}")
        chunks = f"{twin}/arrays/{name}/c"
        for shard in range(4):
            os.unlink(f"{chunks}/{shard}")
        for chunk in range(16):
            if chunk % 4 != 3:
                write(f"{chunks}/{chunk}", 0o644, bytes([5]) * 4096)
        for root in (source, twin):
            at = f"{root}/arrays/{name}/c"
            permit_array(root, name, [f"{at}/{n}" for n in os.listdir(at)])
    for root in (source, twin):
        with open(f"{root}/zarr.json", "w") as f:
            f.write('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
        make_links(root)


# --- operations ------------------------------------------------------------------------------------


def opened(flags, mode=0o666):
    def act(path):
        os.close(os.open(path, flags, mode))

    return act


def read(path):
    with open(path, "rb") as f:
        assert f.read(1)


def append(path):
    with open(path, "ab") as f:
        f.write(b"more")


def accessible(how):
    def act(path):
        if not os.access(path, how):
            raise PermissionError(errno.EACCES, "access")

    return act


def acl_entry(*entries):
    """The attribute that has an access control list of (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ANY = 0xFFFFFFFF
SOME_ACL = acl_entry((1, 6, ANY), (2, 4, BOB), (4, 0, ANY), (0x10, 4, ANY), (0x20, 0, ANY))
ACCESS = "system.posix_acl_access"

ON_FILES = {
    "stat": os.stat,
    "open for reading": read,
    "open for writing": opened(os.O_WRONLY),
    "open with O_TRUNC": opened(os.O_WRONLY | os.O_TRUNC),
    "append": append,
    "truncate": lambda path: os.truncate(path, 3),
    "access r": accessible(os.R_OK),
    "access w": accessible(os.W_OK),
    "utime now": lambda path: os.utime(path),
    "utime": lambda path: os.utime(path, (1, 2)),
    "chmod": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)),
    "chown": lambda path: os.chown(path, os.getuid(), -1),
    "chgrp to the own group": lambda path: os.chown(path, -1, os.getgid()),
    "chgrp back": lambda path: os.chown(path, -1, PROJECT),
    "chmod u+s": lambda path: os.chmod(path, 0o4755),
    "chmod g+s": lambda path: os.chmod(path, 0o2755),
    "write after u+s": append,
    "setfacl": lambda path: os.setxattr(path, ACCESS, SOME_ACL),
    "getfacl": lambda path: os.getxattr(path, ACCESS),
    "setfacl -b": lambda path: os.removexattr(path, ACCESS),
    "setfattr": lambda path: os.setxattr(path, "user.test", b"value"),
    "getfattr": lambda path: os.getxattr(path, "user.test"),
    "link": lambda path: os.link(path, path + ".linked"),
    "unlink the link": lambda path: os.unlink(path + ".linked"),
    "rename": lambda path: os.rename(path, path + ".renamed"),
    "rename back": lambda path: os.rename(path + ".renamed", path),
}


def in_directory(act, name):
    return lambda path: act(f"{path}/{name}")


ON_DIRECTORIES = {
    "list": os.listdir,
    "stat of a file": in_directory(os.stat, "one"),
    "read of a file": in_directory(read, "one"),
    "read below": in_directory(read, "below/file"),
    "create": in_directory(opened(os.O_CREAT | os.O_EXCL | os.O_RDWR), "new"),
    "create with 0600": in_directory(opened(os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "new.600"),
    "write to a new file": in_directory(append, "new"),
    "mkdir": in_directory(os.mkdir, "made"),
    "mkdir with 0700": lambda path: os.mkdir(f"{path}/made.700", 0o700),
    "create in a new directory": in_directory(opened(os.O_CREAT | os.O_RDWR), "made/file"),
    "unlink in a new directory": in_directory(os.unlink, "made/file"),
    "symlink": lambda path: os.symlink("one", f"{path}/symlink"),
    "link": lambda path: os.link(f"{path}/one", f"{path}/linked"),
    "rename": lambda path: os.rename(f"{path}/one", f"{path}/renamed"),
    "rename back": lambda path: os.rename(f"{path}/renamed", f"{path}/one"),
    "rename over": lambda path: os.rename(f"{path}/new", f"{path}/two"),
    "unlink": in_directory(os.unlink, "two"),
    "rmdir": in_directory(os.rmdir, "made"),
    "rmdir of 0700": in_directory(os.rmdir, "made.700"),
    "rename of a directory": lambda path: os.rename(f"{path}/below", f"{path}/above"),
    "rename of a directory back": lambda path: os.rename(f"{path}/above", f"{path}/below"),
    "setfacl of the default": lambda path: os.setxattr(path, "system.posix_acl_default", SOME_ACL),
    "unlink of the rest": lambda path: [os.unlink(f"{path}/{n}") for n in ("new.600", "symlink", "linked")],
}
ON_ARRAYS = {
    "list": in_directory(os.listdir, "c"),
    "stat of a chunk": in_directory(os.stat, "c/0"),
    "stat of no chunk": in_directory(os.stat, "c/3"),
    "read of a chunk": in_directory(read, "c/0"),
    "read of another": in_directory(read, "c/5"),
    "read of the document": in_directory(lambda path: open(path).read(), "zarr.json"),
    "open for writing": in_directory(opened(os.O_WRONLY), "c/0"),
    "access r": in_directory(accessible(os.R_OK), "c/1"),
    "access w": in_directory(accessible(os.W_OK), "c/1"),
    "utime now": in_directory(os.utime, "c/1"),
}


def attributes(path):
    """What there is to see of a file, as root sees it."""
    try:
        seen = os.lstat(path)
    except OSError as e:
        return errno.errorcode[e.errno]
    acl = []
    for name in (ACCESS, "system.posix_acl_default"):
        try:
            acl.append(os.getxattr(path, name, follow_symlinks=False).hex())
        except OSError:
            acl.append("")
    return f"{seen.st_uid}:{seen.st_gid} {seen.st_mode:o}", *acl


def states(path):
    names = [path]
    if os.path.isdir(path):
        names += [f"{path}/{name}" for name in sorted(os.listdir(path))]
    return {os.path.relpath(name, path): attributes(name) for name in names}


class User:
    """Process of a user in which operations are done, one after the other: a new one for each would take longer than
    the operations."""

    def __init__(self, name, operations, umask):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = os.fork()
        if self.process == 0:
            self.ours.close()
            try:
                self.serve(theirs, name, operations, umask)
            finally:
                os._exit(1)
        theirs.close()

    @staticmethod
    def serve(asked, name, operations, umask):
        uid, gid, groups = USERS[name]
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.umask(umask)
        while message := asked.recv(1 << 16):
            operation, path = message.decode().split("\0")
            try:
                operations[operation](path)
                said = "ok"
            except OSError as e:
                said = errno.errorcode.get(e.errno, str(e.errno))
            except BaseException as e:
                said = repr(e)
            asked.send(said.encode())

    def ends(self, operation, path):
        """How an operation ends: "ok" or the errno's name."""
        self.ours.send(f"{operation}\0{path}".encode())
        said = self.ours.recv(1 << 16).decode()
        if not said:
            raise ChildProcessError(f"{operation} on {path}: its process has ended")
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ours.close()
        os.waitpid(self.process, 0)


def compare(mount, twin, where, operations, label, umask=0o022, with_states=True, users=USERS):
    """Operations on a path of both trees, in one order."""
    wrong = []
    paths = [f"{root}/{where}" for root in (mount, twin)]
    for name in users:
        with User(name, operations, umask) as user:
            for operation in operations:
                ends = [user.ends(operation, path) for path in paths]
                if with_states:
                    ends = [(end, states(path)) for end, path in zip(ends, paths)]
                if ends[0] != ends[1]:
                    wrong.append(f"{name}: {operation}: {ends[0]}, plain: {ends[1]}")
    print(f"FAIL {label}: {'; '.join(wrong)}" if wrong else f"ok {label}", flush=True)


def compare_all(mount, twin):
    files = [f"{mode:o}" for mode in MODES] + ["6777", *ACLS, "link"]
    for name in files:
        compare(mount, twin, f"files/{name}", ON_FILES, f"file {name}")
    for name in [f"{mode:o}" for mode in DIRECTORY_MODES] + [*ACLS, "inherited"]:
        where = f"directories/{name}"
        compare(mount, twin, where, ON_DIRECTORIES, f"directory {name}", umask=0o027)
    compare(mount, twin, "link", {"list": os.listdir}, "a link to a directory", with_states=False)
    for name in ARRAYS:
        compare(mount, twin, f"arrays/{name}", ON_ARRAYS, f"array {name}", with_states=False)
    readable = {name: act for name, act in ON_ARRAYS.items() if "writ" not in name and "utime" not in name}
    for name in LINKS:
        # Twice: what root has looked at must not be there for others.
        users = ["other", "root", "owner", "member", "other"]
        compare(mount, twin, f"links/{name}", readable, f"array {name}", with_states=False, users=users)


if __name__ == "__main__":
    {"make": make, "compare": compare_all}[sys.argv[1]](*sys.argv[2:])
