"""What the figures depend on: the machine, its memory, and the versions of everything that was
measured."""

import mmap
import os
import platform
import re
import subprocess
from pathlib import Path

from variants import BenchError, Tools

TOP = Path(__file__).resolve().parents[2]


def facts() -> dict:
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": int(memory[1]) // 1024 if memory else None,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "virtual": first_line(["systemd-detect-virt"]),
        "load_before": os.getloadavg()[0],
    }


def has_rings() -> bool:
    """Whether requests can come by io_uring."""
    switch = Path("/sys/module/fuse/parameters/enable_uring")
    return switch.exists() and switch.read_text().strip() == "Y"


def versions(tools: Tools, variants: list[str]) -> dict:
    found = {
        "commit": first_line(["git", "-C", str(TOP), "describe", "--always", "--dirty"]),
        "rustc": first_line(["rustc", "--version"]),
        "fuser": locked("fuser"),
        "fusermount3": first_line(["fusermount3", "--version"]),
        "find": first_line(["find", "--version"]),
    }
    commands = {
        "shardfs": [tools.shardfs, "--version"],
        "baseline": [tools.baseline, "--version"],
        "squashfuse_ll": ["squashfuse_ll", "--version"],
        "ratarmount": [tools.ratarmount, "--version"],
    }
    found.update({name: first_line(command) for name, command in commands.items()
                  if name in variants})
    return found


def first_line(command: list[str]) -> str | None:
    """The first line the command prints, on either stream (squashfuse's goes to the second)."""
    try:
        out = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError:
        return None
    return next(iter(out.stdout.splitlines()), None)


def locked(package: str) -> str | None:
    """The version of a crate in Cargo.lock."""
    lock = TOP / "Cargo.lock"
    if not lock.exists():
        return None
    match = re.search(rf'^name = "{package}"\nversion = "(.*)"$', lock.read_text(), re.MULTILINE)
    return match[1] if match else None


class Reserve:
    """Memory held between the measurements and let go just before a first read or a copy.

    Either fills the page cache. In a virtual machine whose host takes free memory back, a
    free page costs a fault in the host at first use: up to four times a read itself, at random.
    Pages that this process has just let go cost nothing, whoever gets them.
    """

    def __init__(self, size: int):
        self.size = size
        self.memory: mmap.mmap | None = None

    def take(self) -> None:
        if self.memory is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
            self.memory = mmap.mmap(-1, self.size, flags=flags)

    def release(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory = None


def stolen_seconds() -> float:
    """CPU time that the host gave to others while this machine wanted it."""
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def placement(cpus: str) -> tuple[list[str], list[str]]:
    """The command prefixes that put client and daemon on their CPUs."""
    usable = sorted(os.sched_getaffinity(0))
    if cpus == "any":
        return [], []
    if cpus == "two" and len(usable) < 2:
        raise BenchError("--cpus two: this machine has one CPU")
    client, rest = usable[-1], usable[:-1]
    daemon = str(client) if cpus == "one" else ",".join(map(str, rest))
    return ["taskset", "-c", str(client)], ["taskset", "-c", daemon]
