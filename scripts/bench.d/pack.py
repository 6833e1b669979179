#!/usr/bin/env python3
"""Measure the commands that copy whole arrays, beside cp -r of the chunk files, and those that look at
very many chunks, and add it to the JSON; started by scripts/bench."""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import zarr

import machine
import part
from data_sets import DATA_SETS, LISTED
from part import in_turn, put_away, sync, warm
from variants import BenchError

COPIES = ["cp -r", "unpack", "pack", "repack"]
LISTINGS = {"ls": ["ls"], "ls -l": ["ls", "-l"], "verify": ["verify"], "info": ["info"]}


class Setting:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.suffix = "-quick" if args.quick else ""
        self.took = args.run_dir / "took"

    def run(self, *command, stdout) -> dict:
        """What the command took."""
        return part.measured(self.took, *command, stdout=stdout)

    def shardfs(self, *args) -> tuple[dict, dict]:
        """What the command took, and its result."""
        out = self.args.run_dir / "out.json"
        with out.open("wb") as stdout:
            took = self.run(self.args.shardfs, *args, "--json", stdout=stdout)
        return took, json.loads(out.read_text())


def copying(setting: Setting) -> dict:
    """All chunks of an array written anew: as files of their own, and in shards."""
    name = f"32k{setting.suffix}"
    data = DATA_SETS[name]
    chunks, sharded = (setting.args.data_dir / name / form for form in ("chunks", "array.zarr"))
    size = data.files * data.chunk_bytes
    target = setting.args.run_dir / "copied"
    reserve = machine.Reserve(2 * size)
    runs: dict[str, list[dict]] = {how: [] for how in ["cp -r", "cp -r, sync", *COPIES[1:]]}
    steal = machine.stolen_seconds()
    for _, how in in_turn("pack", COPIES, setting.args.rounds):
        put_away(target)
        if how == "repack":
            shutil.copytree(sharded, target)
        sync(target.parent)
        for source in (chunks, sharded, *([target] if how == "repack" else [])):
            warm(source)
        reserve.take()
        reserve.release()
        match how:
            case "cp -r":
                copy = setting.run("cp", "-r", chunks, target, stdout=subprocess.DEVNULL)
                flush = setting.run("sync", "-f", target, stdout=subprocess.DEVNULL)
                runs["cp -r, sync"].append({key: copy[key] + flush[key] for key in ("seconds", "cpu")})
                runs[how].append(copy)
                form = chunks
            case "unpack":
                took, _result = setting.shardfs("unpack", sharded, target)
                runs[how].append(took)
                form = chunks
            case "pack":
                shape = ",".join(map(str, data.shard))
                took, _result = setting.shardfs("pack", "--shard", shape, chunks, target)
                runs[how].append(took)
                form = sharded
            case "repack":
                # zarr-python has written the chunks in Morton order: every shard changes.
                took, result = setting.shardfs("repack", "--order", "c", target)
                written = sum(array["shards_rewritten"] for array in result["arrays"])
                if written != len(chunk_files(sharded)):
                    raise BenchError(f"repack has written {written} shards")
                runs[how].append(took)
                form = sharded
        check(target, chunks, form, data.shard)
    put_away(target)
    return {"files": data.files, "shards": len(chunk_files(sharded)), "bytes": size, "runs": runs,
            "stolen_seconds": round(machine.stolen_seconds() - steal, 2)}


def chunk_files(array: Path) -> dict[str, int]:
    """Names and sizes."""
    return {str(path.relative_to(array)): path.stat().st_size
            for path in array.joinpath("c").rglob("*") if path.is_file()}


def check(copy: Path, original: Path, form: Path, shard: tuple[int, ...]) -> None:
    """`copy` has the files that `form` has, and its last shard has the elements of `original`."""
    if chunk_files(copy) != chunk_files(form):
        raise BenchError(f"{copy}: other files than in {form}")
    box = tuple(slice(-size, None) for size in shard)
    one, other = (zarr.open_array(path, mode="r")[box] for path in (copy, original))
    if not (one == other).all():
        raise BenchError(f"{copy} and {original} differ")


def listing(setting: Setting) -> dict:
    """An array with very many chunks, looked at in a pipe."""
    name = f"listed{setting.suffix}"
    shards, chunks, chunk_bytes = LISTED[name]
    source = setting.args.data_dir / name
    runs: dict[str, list[dict]] = {how: [] for how in LISTINGS}
    for _, how in in_turn("pack", LISTINGS, setting.args.rounds):
        warm(source)
        with subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            took = setting.run(setting.args.shardfs, *LISTINGS[how], source, stdout=reader.stdin)
            lines = int(reader.communicate()[0])
        if how.startswith("ls") and lines != shards * chunks:
            raise BenchError(f"{how}: {lines} lines")
        runs[how].append(took)
    return {"shards": shards, "chunks": shards * chunks, "chunk_bytes": chunk_bytes, "runs": runs}


def main() -> None:
    args = part.parser().parse_args()
    client, _daemon = machine.placement(args.cpus)
    setting = Setting(args)
    report = part.report(args, {"zarr-python": "zarr"})
    if args.cpus == "one":
        # No client and no daemon here: each command has one CPU, or all of them.
        os.sched_setaffinity(0, {int(client[-1])})
    parts = {"copying": copying, "listing": listing}
    part.measure(report, "pack", {"quick": args.quick}, parts, setting, args.json)


if __name__ == "__main__":
    part.start(main)
