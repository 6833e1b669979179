"""Where sources lie: filesystems that can lose their power, and mounts of shardfs."""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
F_ADD_SEALS = 1033
F_SEAL_FUTURE_WRITE = 0x10
MNT_FORCE, MNT_DETACH = 1, 2
MOUNT_SECONDS = 30
STATE = Path("/var/lib") if os.geteuid() == 0 else Path(
    os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
UNSAVED = STATE / "shardfs/unsaved"
# xfs wants this much; only what is written takes memory.
IMAGE_BYTES = 320 << 20
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-m0"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
MOUNT_OPTIONS = {
    "ext4": ["data=ordered", "data=writeback", "data=journal,nodelalloc", "data=ordered,commit=1"],
    "xfs": ["defaults"],
    "btrfs": ["defaults", "commit=1", "notreelog", "nodatacow"],
}
libc = ctypes.CDLL(None, use_errno=True)


class Trouble(Exception):
    """The test itself could not go on."""


def detach(path: Path) -> None:
    """Unmounts whatever state it is in; umount(8) waits for a daemon that does not answer."""
    while is_mounted(path):
        if libc.umount2(os.fsencode(path), MNT_FORCE | MNT_DETACH) != 0:
            raise Trouble(f"{path}: cannot be unmounted: {os.strerror(ctypes.get_errno())}")


def is_mounted(path: Path) -> bool:
    with open("/proc/self/mounts", errors="surrogateescape") as mounts:
        return any(line.split()[1] == str(path) for line in mounts)


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if done.returncode:
        raise Trouble(f"{' '.join(map(str, command))}: {done.stdout}")
    return done.stdout.strip()


class Folder:
    """A directory of the local filesystem: only the daemon can be killed."""

    kind = "local"

    def __init__(self, top: Path):
        self.top = top
        self.top.mkdir(parents=True)

    def options(self) -> str:
        return ""

    def remove(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)


class Faulty:
    """A directory below a filesystem that fails at random (examples/faulty_fs.rs)."""

    kind = "faulty"

    def __init__(self, top: Path, program: str, seed: int):
        self.top, self.seed = top, seed
        self.backing = top.with_name("backing")
        self.odds = top.with_name("odds")
        self.log = top.with_name("faults.log")
        top.mkdir(parents=True)
        self.backing.mkdir()
        self.faults(0)
        command = [program, "--odds", self.odds, "--seed", str(seed), self.backing, top]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out, start_new_session=True)
        deadline = time.monotonic() + MOUNT_SECONDS
        while not is_mounted(top):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise Trouble(f"faulty_fs does not mount: {self.log.read_text()}")
            time.sleep(0.005)

    def options(self) -> str:
        return ""

    def faults(self, odds: int) -> None:
        """From now on so many of 1000 requests fail."""
        # In one step: an empty file would be no fault at all.
        new = self.odds.with_suffix(".new")
        new.write_text(f"{odds}\n")
        new.rename(self.odds)

    def happened(self) -> int:
        """The number of faults until now."""
        return self.log.read_bytes().count(b"\n")

    def remove(self) -> None:
        detach(self.top)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.backing, ignore_errors=True)
        self.top.rmdir()


class Disk:
    """A filesystem on a loop device whose bytes are in an anonymous file in memory.

    Such a file can be sealed: from one moment on every write to it fails. What it holds then is
    what a disk holds after a power cut that had written everything in the order it was told. That
    is the power cut for all filesystems alike; where there is the ioctl that shuts one down, the
    filesystem itself drops what it has in memory.
    """

    def __init__(self, kind: str, top: Path, options: str, tag: str):
        self.kind, self.top, self.mount_options, self.tag = kind, top, options, tag
        self.top.mkdir(parents=True)
        self.device: str | None = None
        self.file = self.new_file()
        try:
            self.make(kind)
            self.attach()
        except BaseException:
            self.remove()
            raise

    def options(self) -> str:
        return self.mount_options

    def make(self, kind: str) -> None:
        """mkfs.btrfs looks at every mount there is, and fails while somebody's is shut down."""
        for attempt in range(10):
            try:
                return run(*MKFS[kind], f"/proc/{os.getpid()}/fd/{self.file}")
            except Trouble:
                if attempt == 9:
                    raise
                time.sleep(3)

    def new_file(self) -> int:
        file = os.memfd_create(self.tag, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(file, IMAGE_BYTES)
        return file

    def attach(self) -> None:
        self.device = run("losetup", "-f", "--show", f"/proc/{os.getpid()}/fd/{self.file}")
        run("mount", "-t", self.kind, "-o", self.mount_options, self.device, self.top)

    def is_attached(self) -> bool:
        """Whether the device is still this place's: its backing file has the name of this run."""
        try:
            return self.tag in Path(f"/sys/block/{Path(self.device).name}/loop/backing_file").read_text()
        except OSError:
            return False

    def release(self) -> None:
        detach(self.top)
        if self.device:
            # The device is busy for as long as the detached filesystem is, also where only another mount
            # namespace has it. Once it is free, others may take it.
            deadline = time.monotonic() + 180
            while self.is_attached():
                done = subprocess.run(["losetup", "-d", self.device], stderr=subprocess.PIPE)
                if not self.is_attached():
                    break
                if time.monotonic() > deadline:
                    raise Trouble(f"{self.device} cannot be freed: {done.stderr!r}")
                time.sleep(0.01)
            self.device = None

    def sync(self) -> None:
        file = os.open(self.top, os.O_RDONLY)
        try:
            if libc.syncfs(file) != 0:
                raise Trouble("syncfs failed")
        finally:
            os.close(file)

    def shut_down(self) -> bool:
        """Whether there is this ioctl."""
        file = os.open(self.top, os.O_RDONLY)
        try:
            fcntl.ioctl(file, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def seal(self) -> None:
        fcntl.fcntl(self.file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)

    def power_on(self) -> None:
        """Mounts again what the disk holds."""
        self.release()
        sealed, self.file = self.file, self.new_file()
        try:
            copy(sealed, self.file)
        finally:
            os.close(sealed)
        self.attach()

    def save(self, path: Path) -> None:
        """The disk's bytes as a file."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(file, IMAGE_BYTES)
            copy(self.file, file)
        finally:
            os.close(file)

    def remove(self) -> None:
        self.release()
        os.close(self.file)
        self.top.rmdir()


def copy(source: int, target: int) -> None:
    at = 0
    while True:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(source, at, os.SEEK_HOLE)
        os.lseek(target, at, os.SEEK_SET)
        while at < end:
            at += os.sendfile(target, source, at, end - at)


def loop_mounts_missing(kind: str, top: Path, tag: str) -> str | None:
    """Why there can be no such filesystem here; None if there can."""
    if os.geteuid() != 0:
        return "only root can mount"
    if not shutil.which(MKFS[kind][0]):
        return f"no {MKFS[kind][0]}"
    try:
        Disk(kind, top, "defaults", tag).remove()
    except (Trouble, OSError) as error:
        return str(error)
    return None


class View:
    """A mount of shardfs."""

    def __init__(self, program: str, source: Path, mountpoint: Path, log: Path,
                 options: list[str]):
        self.mountpoint, self.log, self.program = mountpoint, log, program
        self.command = [program, "mount", "-f", *options, str(source), str(mountpoint)]
        with log.open("ab") as out:
            out.write(f"--- {' '.join(self.command)}\n".encode())
            self.start = out.tell()
        with log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out, start_new_session=True)
        try:
            self.wait_until_mounted()
        except BaseException:
            self.kill()
            raise

    def wait_until_mounted(self) -> None:
        deadline = time.monotonic() + MOUNT_SECONDS
        while not is_mounted(self.mountpoint):
            if self.process.poll() is not None:
                raise Trouble(f"mount failed: {' '.join(self.command)}\n{self.said()}")
            if time.monotonic() > deadline:
                raise Trouble(f"no mount after {MOUNT_SECONDS} s")
            time.sleep(0.001)
        os.stat(self.mountpoint)

    def said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self.start)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        detach(self.mountpoint)
        self.remove_unsaved()

    def remove_unsaved(self) -> None:
        """What could not be committed, as after a power cut, is saved outside of the source."""
        for saved in UNSAVED.glob(f"*-{self.process.pid}"):
            shutil.rmtree(saved)

    def unmount(self) -> None:
        # umount names ten of them.
        leftover = Path(self.mountpoint, ".shardfs/leftover.txt").read_text()
        command = [self.program, "umount", self.mountpoint]
        done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        # Writers that met a fault have left their temporary files beside the chunks.
        expected = ("no chunk, in the mount alone", "unmounted, and its source", "another mount namespace",
                    "other change", "removed, but its array is not")
        lines = leftover.splitlines() + done.stdout.splitlines()
        other = [line for line in lines if not any(text in line for text in expected)]
        if done.returncode not in (0, 2) or other:
            raise Trouble(f"{command}: {done.stdout}")
        # Where another mount namespace has a copy of the mount, umount says so, and the process ends with it.
        self.process.wait(180 if "another mount namespace" in done.stdout else 30)
        self.remove_unsaved()
