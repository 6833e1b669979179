#!/usr/bin/env python3
"""Time the variants in turn and write what came out as JSON; started by scripts/bench."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import machine
from data_sets import DATA_SETS, DataSet
from variants import NAMES, BenchError, Daemon, Tools, mount_command, mounted, source_name, unmount_command

# Each line runs on a mount of its own, so that its first operation finds nothing in the kernel. Who
# reads what was listed, as cp -r and tar do, asks for inodes that the kernel knows: chunks can be pushed
# ahead of it. Who opens chunks by their keys, as Zarr libraries do, asks for unknown ones.
SESSIONS = [
    ["find", "find again", "read listed"],
    ["find sizes"],
    ["read first", "read again", "read random"],
]
RANDOM_FILES = 8192
CLIENT_SECONDS = 900
CHECKED_FILES = 64


class Client:
    """Runs one operation on a tree of chunk files and returns its seconds."""

    def __init__(self, data: DataSet, run_dir: Path, reader: str, prefix: list[str]):
        self.data, self.run_dir, self.reader, self.prefix = data, run_dir, reader, prefix
        keys = data.keys()
        # Random reads come from what is cached: no more than four times the set.
        picked = random.Random(1).choices(keys, k=min(RANDOM_FILES, 4 * len(keys)))
        self.lists = {"all": keys, "random": picked}
        for name, names in self.lists.items():
            (run_dir / name).write_text("\n".join(names) + "\n")

    def time(self, operation: str, root: Path) -> float:
        if operation == "find sizes":
            return self.find(root, ["-printf", "%s\n"])
        if operation.startswith("find"):
            return self.find(root, [])
        return self.read(root, "random" if operation == "read random" else "all")

    def find(self, root: Path, action: list[str]) -> float:
        found = self.run_dir / "found"
        command = [*self.prefix, "find", str(root / "c"), "-type", "f", *action]
        with found.open("wb") as out:
            start = time.perf_counter()
            run_client(command, stdout=out)
            seconds = time.perf_counter() - start
        lines = found.read_text().splitlines()
        size = sum(map(int, lines)) if action else len(lines) * self.data.chunk_bytes
        self.expect(root, "all", len(lines), size)
        return seconds

    def read(self, root: Path, list_name: str) -> float:
        command = [*self.prefix, self.reader, str(self.run_dir / list_name), str(root)]
        seconds, files, size = run_client(command, stdout=subprocess.PIPE).stdout.split()
        self.expect(root, list_name, int(files), int(size))
        return float(seconds)

    def expect(self, root: Path, list_name: str, files: int, size: int) -> None:
        wanted = len(self.lists[list_name])
        if (files, size) != (wanted, wanted * self.data.chunk_bytes):
            raise BenchError(f"{root}: {files} files of {size} bytes, expected {wanted} of "
                             f"{self.data.chunk_bytes} bytes each")

    def check_content(self, root: Path, original: Path) -> None:
        step = max(1, self.data.files // CHECKED_FILES)
        for key in self.lists["all"][::step]:
            if (root / key).read_bytes() != (original / key).read_bytes():
                raise BenchError(f"{root}: {key} differs from the chunk that was written")


def run_client(command: list[str], **options) -> subprocess.CompletedProcess:
    """Like subprocess.run(timeout=...), which polls and would add up to 50 ms to each time."""
    signal.alarm(CLIENT_SECONDS)
    try:
        return subprocess.run(command, check=True, **options)
    finally:
        signal.alarm(0)


def give_up(*_: object) -> None:
    raise BenchError(f"no end after {CLIENT_SECONDS} s")


def measure(operations: list[str], client: Client, root: Path, daemon: Daemon | None,
            result: dict) -> None:
    for operation in operations:
        cpu = daemon.cpu_seconds() if daemon else 0.0
        seconds = client.time(operation, root)
        result["seconds"].setdefault(operation, []).append(seconds)
        if daemon:
            used = round(daemon.cpu_seconds() - cpu, 2)
            result["daemon_cpu"].setdefault(operation, []).append(used)


def one_round(name: str, data: DataSet, dir: Path, client: Client, reserve: machine.Reserve,
              args: argparse.Namespace, result: dict) -> None:
    """All sessions of one variant, each on a fresh mount."""
    chunks = dir / "chunks"
    for operations in SESSIONS:
        fills = any(operation.startswith("read") for operation in operations)
        reads = operations[0] == "read first"
        if fills:
            reserve.take()
        if not args.cold:
            # Just before it is measured: machines exist that take an idle page cache back.
            warm(dir / source_name(name))
        if name == "local":
            mount, root = nullcontext(), chunks
        else:
            root = args.run_dir / "mount"
            command = mount_command(name, args.tools, data, dir, root)
            mount = mounted(name, [*args.daemon_prefix, *command],
                            unmount_command(name, args.tools, root), root, args.run_dir)
        with mount as daemon:
            if args.cold:
                drop_caches()
            if fills:
                reserve.release()
            measure(operations, client, root, daemon, result)
            if daemon:
                result["mount"].append(daemon.mount_seconds)
            if daemon and reads:
                result["memory_kib"].append(daemon.memory_kib())
                if not name.startswith("floor"):
                    client.check_content(root, chunks)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def warm(source: Path) -> None:
    """Reads every backing file once, so that all variants start from the page cache."""
    buffer = bytearray(1 << 20)
    for path in [source, *sorted(source.rglob("*"))]:
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def run_set(set_name: str, args: argparse.Namespace) -> dict:
    data = DATA_SETS[set_name]
    dir = args.data_dir / set_name
    client = Client(data, args.run_dir, args.reader, args.client_prefix)
    reserve = machine.Reserve(2 * data.files * data.chunk_bytes)
    results = {name: {"seconds": {}, "daemon_cpu": {}, "mount": [], "memory_kib": []}
               for name in args.variants}
    steal = machine.stolen_seconds()
    for number in range(args.rounds):
        # There and back again: a machine that grows slower is no variant's disadvantage.
        for name in args.variants if number % 2 == 0 else reversed(args.variants):
            say(f"{set_name}: round {number + 1} of {args.rounds}: {name}")
            one_round(name, data, dir, client, reserve, args, results[name])
    return {
        "shape": data.shape, "chunk": data.chunk, "shard": data.shard, "grid": data.grid,
        "files": data.files, "random_files": len(client.lists["random"]),
        "stolen_seconds": round(machine.stolen_seconds() - steal, 2), "variants": results,
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--set", dest="sets", action="append", choices=DATA_SETS, required=True)
    parser.add_argument("--variant", dest="variants", action="append", choices=NAMES, required=True)
    parser.add_argument("--skipped", action="append", default=[], metavar="NAME=REASON")
    parser.add_argument("--cpus", choices=["one", "two", "any"], required=True)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    for tool in ("reader", "shardfs", "baseline", "floor", "ratarmount"):
        parser.add_argument(f"--{tool}", required=True)
    args = parser.parse_args()
    args.variants = [name for name in NAMES if name in args.variants]
    args.tools = Tools(args.shardfs, args.baseline, args.floor, args.ratarmount)
    args.client_prefix, args.daemon_prefix = machine.placement(args.cpus)
    return args


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, give_up)
    args = parse()
    (args.run_dir / "mount").mkdir()
    report = {
        "machine": machine.facts(), "versions": machine.versions(args.tools, args.variants),
        "rounds": args.rounds, "cpus": args.cpus, "cold": args.cold,
        "skipped": dict(text.split("=", 1) for text in args.skipped),
        "sets": {},
    }
    for name in args.sets:
        report["sets"][name] = run_set(name, args)
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (BenchError, subprocess.SubprocessError) as error:
        sys.exit(f"bench: {error}")
