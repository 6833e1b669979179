"""What the measurements beside those of reading share: their arguments, the JSON they add to, and that
each of their parts may fail alone."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import machine
from variants import BenchError, Tools

MEASURED = Path(__file__).with_name("measured.py")


def parser(required: bool = True) -> argparse.ArgumentParser:
    """What scripts/bench passes; not required where the program does something else as well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=required)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpus", choices=["one", "two", "any"], required=required)
    for path in ("--data-dir", "--run-dir", "--json"):
        parser.add_argument(path, type=Path, required=required)
    parser.add_argument("--add", action="store_true", help="to what stands in the file already")
    for tool in ("--reader", "--shardfs"):
        parser.add_argument(tool, required=required)
    return parser


def report(args: argparse.Namespace, packages: dict[str, str]) -> dict:
    """What the parts are added to. `packages`: what the Python packages that take part are called."""
    if args.add:
        report = json.loads(args.json.read_text())
    else:
        tools = Tools(args.shardfs, "", "", "")
        report = {"machine": machine.facts(), "versions": machine.versions(tools, ["shardfs"]),
                  "rounds": args.rounds, "cpus": args.cpus, "cold": False, "skipped": {}, "sets": {}}
    report["versions"] |= {name: version(package) for name, package in packages.items()}
    return report


def measure(report: dict, name: str, head: dict, parts: dict[str, Callable[[Any], dict]],
            setting: Any, file: Path) -> None:
    """Adds `name` to the report: `head`, and what each part finds out."""
    report[name] = head
    for title, part in parts.items():
        say(f"{name}: {title}")
        # The other parts say something all the same.
        try:
            head[title] = part(setting)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            say(f"{name}: {title} failed: {error}")
            head[title] = {"failed": str(error)}
        file.write_text(json.dumps(report, indent=1) + "\n")


def in_turn(what: str, names: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Each of them in each round, every other round backwards: what the machine does meanwhile hits
    all of them alike."""
    names = list(names)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            say(f"{what}: round {number + 1} of {rounds}: {name}")
            yield number, name


def measured(file: Path, *command, stdout=subprocess.DEVNULL) -> dict:
    """What a command took; `file` is where that stands meanwhile."""
    process = subprocess.Popen([sys.executable, "-I", "-S", MEASURED, file, *command], stdout=stdout)
    try:
        ended = process.wait()
    finally:
        if process.poll() is None:
            # It ends the command first.
            process.terminate()
            process.wait()
    took = json.loads(file.read_text()) if ended == 0 else {"ended_with": ended}
    if took["ended_with"] != 0:
        raise BenchError(f"{' '.join(map(str, command))} ended with {took['ended_with']}")
    return took


def sync(path: Path) -> None:
    """All of the filesystem: nobody pays for what somebody else has written."""
    subprocess.run(["sync", "-f", path], check=True)


def fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def warm(top: Path) -> None:
    """Brings all files into the page cache."""
    buffer = bytearray(1 << 20)
    for path in top.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def start(main: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except (BenchError, subprocess.SubprocessError) as error:
        sys.exit(f"bench: {error}")


def put_away(tree: Path) -> None:
    """Gives its blocks back; the empty files stay until the run's directory is removed. ext4 does not use
    an inode again for a minute or more after its file was removed, and looks at each such inode whenever
    it makes a file: after the removal of 32768 files cp -r takes five times as long."""
    if not tree.exists():
        return
    place = Path(tempfile.mkdtemp(prefix="away.", dir=tree.parent))
    for path in tree.rename(place / tree.name).rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
