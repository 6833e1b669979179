#!/usr/bin/env python3
"""Print what scripts/bench measured.
usage: report.py FILE.json"""

import json
import operator
import sys
from math import prod
from statistics import median

OPERATIONS = ["find", "find again", "read listed", "find sizes", "read first", "read again", "read random"]
READS = ["read listed", "read first", "read again", "read random"]
PAIRS = [("shardfs", "floor"), ("shardfs-immutable", "floor-immutable")]
COPYING = [("shardfs", "floor-copying"), ("shardfs-immutable", "floor-copying-immutable")]

RINGS = [("shardfs-uring", "shardfs"), ("shardfs-uring-immutable", "shardfs-immutable")]
BASELINES = [(f"shardfs{how}{when}", f"baseline{when}") for how in ("", "-uring") for when in ("", "-immutable")]

# (operation, numerator, denominator, comparison, target); the project's own goals.
TARGETS = [
    *(("read first", mount, floor, "<=", 1.15) for mount, floor in PAIRS),
    *(("read first", mount, copying, None, None) for mount, copying in COPYING),
    *(("read first", "squashfuse_ll", mount, ">=", 1.5) for mount, _ in PAIRS),
    *(("read first", "ratarmount", mount, ">=", 3.0) for mount, _ in PAIRS),
    ("read again", "shardfs", "floor", None, None),
    ("read again", "shardfs-immutable", "floor-immutable", "<=", 1.1),
    ("read again", "squashfuse_ll", "shardfs", None, None),
    ("read again", "ratarmount", "shardfs", None, None),
    *(("read random", mount, floor, None, None) for mount, floor in PAIRS),
    *((find, mount, floor, "<=", 1.2) for find in ("find", "find sizes") for mount, floor in PAIRS),
    ("find", "squashfuse_ll", "shardfs", None, None),
    ("find", "ratarmount", "shardfs", None, None),
    *((read, *pair, None, None) for read in READS for pair in RINGS),
    *((operation, *pair, None, None) for operation in OPERATIONS for pair in BASELINES),
]
PLACES = {
    "one": "client and daemon share one CPU",
    "two": "client and daemon have CPUs of their own",
    "any": "client and daemon run wherever the scheduler puts them",
}
COMPARE = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


def print_head(report: dict) -> None:
    machine, versions = report["machine"], report["versions"]
    print(f"{machine['cpus']} x {machine['cpu']}, {machine['memory_mib']} MiB, "
          f"{machine['system']}, Linux {machine['kernel']}")
    for name, version in versions.items():
        if version:
            print(f"  {name}: {version}")
    print(f"medians of {report['rounds']} interleaved rounds; {PLACES[report['cpus']]}")
    if report["sets"] and report["cold"]:
        print("'find', 'find sizes' and 'read first' read the disk: caches dropped after the mount")
    elif report["sets"]:
        print("'find', 'find sizes' and 'read first': first after a fresh mount; the files behind "
              "it are in the page cache for all variants")
    for name, reason in report["skipped"].items():
        print(f"skipped: {name}: {reason}")
    if machine["load_before"] > 0.5:
        print(f"warning: the machine was busy before (load {machine['load_before']:.2f})")


def print_set(name: str, result: dict) -> None:
    print(f"\n{name}: {result['files']} chunks of {prod(result['chunk']) // 1024} KiB; "
          f"random: {result['random_files']} files")
    variants = result["variants"]
    rows = {op: {v: r["seconds"].get(op) for v, r in variants.items()} for op in OPERATIONS}
    rows["mount"] = {v: r["mount"] for v, r in variants.items()}
    print_table("seconds", rows, 3)
    rows = {op: {v: r["daemon_cpu"].get(op) for v, r in variants.items()} for op in OPERATIONS}
    rows["peak RSS, MiB"] = memory(variants, "peak_rss")
    rows["of it anonymous"] = memory(variants, "anonymous")
    print_table("daemon's CPU, s", rows, 2)
    print_ratios(variants)
    if result["stolen_seconds"] > 1:
        print(f"  warning: the host took {result['stolen_seconds']} s of CPU time meanwhile")


def memory(variants: dict, key: str) -> dict:
    return {v: [max(m[key] for m in r["memory_kib"]) / 1024] if r["memory_kib"] else None
            for v, r in variants.items()}


def print_table(title: str, rows: dict, digits: int) -> None:
    columns = list(next(iter(rows.values())))
    widths = [max(9, len(column)) for column in columns]
    print(f"  {title:16s}" + "".join(f"  {c:>{w}s}" for c, w in zip(columns, widths)))
    for row, values in rows.items():
        cells = (f"{median(values[c]):.{digits}f}" if values[c] else "-" for c in columns)
        print(f"  {row:16s}" + "".join(f"  {cell:>{w}s}" for cell, w in zip(cells, widths)))
    print()


def print_ratios(variants: dict) -> None:
    targets = [t for t in TARGETS if t[1] in variants and t[2] in variants]
    if targets:
        print("  ratio of the medians, of the fastest, [smallest and largest within a round]")
    for op, above, below, comparison, target in targets:
        one, other = (variants[v]["seconds"][op] for v in (above, below))
        ratio = median(one) / median(other)
        fastest = min(one) / min(other)
        rounds = [a / b for a, b in zip(one, other)]
        mark = ""
        if comparison:
            met = "met" if COMPARE[comparison](ratio, target) else "NOT met"
            mark = f"target {comparison} {target}: {met}"
        print(f"  {op:12s} {above + ' / ' + below:48s} {ratio:7.2f} {fastest:6.2f}  "
              f"[{min(rounds):.2f}, {max(rounds):.2f}]  {mark}".rstrip())


def print_write(write: dict) -> None:
    """Goals stand beside the figures; nothing depends on them."""
    print(f"\nwriting{' (quick)' if write['quick'] else ''}: chunks of 32 KiB, "
          f"{write['shard_chunks']} in a shard")

    def line(what: str, figure: float, unit: str, compare: str = "", goal: float = 0) -> None:
        mark = ""
        if compare:
            met = "met" if COMPARE[compare](figure, goal) else "NOT met"
            mark = f"  goal {compare} {goal:g}: {met}"
        print(f"  {what:62s} {figure:10.2f} {unit:9s}{mark}".rstrip())

    def one_update(one: dict) -> None:
        line("one chunk of a full shard changed: KiB written", max(one["bytes"]) / 1024, "KiB",
             "<=", round(one["goal"] / 1024, 2))
        line("  of these, beside chunk and index",
             (max(one["bytes"]) - one["chunk_bytes"] - one["index_bytes"]) / 1024, "KiB")

    def storm(storm: dict) -> None:
        amplification = [run["source_bytes"] / storm["asked"] for run in storm["runs"]]
        line("a new shard, file by file: bytes written / bytes asked", max(amplification), "x",
             "<=", 1.05)
        line("  with an fsync of the root",
             storm["asked"] / 2**20 / median(run["seconds"] for run in storm["runs"]), "MiB/s")

    def durable_updates(updates: dict) -> None:
        counts = updates["counts"]
        each = {name: median(times) / counts[name] for name, times in updates["seconds"].items()}
        for name, seconds in each.items():
            line(f"a durable update of one chunk: {name} (of {counts[name]})", seconds * 1000, "ms")
        for name in each:
            if name != "shardfs":
                line(f"  {counts['shardfs']} of them: {name} (scaled) / shardfs",
                     each[name] / each["shardfs"], "x", ">=", 20)

    def copy(copied: dict) -> None:
        times = {name: median(values) for name, values in copied["seconds"].items()}
        line(f"cp -r of {copied['files']} files, then fsync of the root", times["shardfs"], "s")
        if "shardfs-uring" in times:
            line("  by io_uring", times["shardfs-uring"], "s")
            line("  by io_uring / shardfs", times["shardfs-uring"] / times["shardfs"], "x", "<=", 0.45)
            line("  by io_uring / local", times["shardfs-uring"] / times["local"], "x", "<=", 3)
        line("  to the local filesystem, then sync", times["local"], "s")
        line("  shardfs / local", times["shardfs"] / times["local"], "x", "<=", 3)
        line("  bytes written / bytes asked", max(copied["source_bytes"]) / copied["asked"], "x")

    def created(made: dict) -> None:
        times = {name: median(values) for name, values in made["seconds"].items()}
        line(f"a new array of {made['chunks']} chunk files, cp -r, durable: mount --shard", times["mount --shard"], "s")
        line("  the chunk files before the metadata", times["mount --shard, chunks first"], "s")
        line("  as chunk files: a mount without rules", times["mount"], "s")
        line("  and pack", times["mount, pack"], "s")
        line("  to the local filesystem", times["local"], "s")
        line("  files on disk / as chunk files", made["files"]["mount --shard"] / made["files"]["mount"], "x", "<=", 0.01)
        line("  bytes written / bytes asked", max(made["source_bytes"]) / made["asked"], "x", "<=", 1.02)

    def rewritten(rewritten: dict) -> None:
        sizes = rewritten["sizes"]
        line(f"a shard written {len(sizes) - 1} times over: largest size / first size",
             max(sizes) / sizes[0], "x", "<=", 2)
        line("  bytes written / bytes asked", rewritten["source_bytes"] / rewritten["asked"], "x")

    parts = {"one update": one_update, "storm": storm, "durable updates": durable_updates,
             "copy": copy, "created": created, "rewritten": rewritten}
    for name, show in parts.items():
        if "failed" in write[name]:
            print(f"  {name}: FAILED: {write[name]['failed']}")
        else:
            show(write[name])


def print_decode(decode: dict) -> None:
    for name in ("zstd", "blosc-lz4"):
        result = decode[name]
        if "failed" in result:
            print(f"\ndecoding, {name}: FAILED: {result['failed']}")
            continue
        print(f"\ndecoding{' (quick)' if decode['quick'] else ''}, {name}: {result['bytes'] >> 20} MiB "
              f"in chunks of {result['chunk_bytes'] >> 10} KiB; libraries: {decode['threads']} threads")
        times = {how: median(values) for how, values in result["seconds"].items()}
        libraries = ["tensorstore", "zarrs"]
        print(f"  {'':18s}{'seconds':>9s}{'GB/s':>8s}" + "".join(f"{'/ ' + n:>15s}" for n in libraries))
        for how, seconds in times.items():
            cells = f"  {how:18s}{seconds:9.3f}{result['bytes'] / seconds / 1e9:8.2f}"
            if how not in libraries:
                goal = 0.8 if how.startswith("flat") else 0.9
                for library in libraries:
                    speed = times[library] / seconds
                    cells += f"{speed:8.2f} {'met' if speed >= goal else 'NOT met':>6s}"
                cells += f"  goal >= {goal}"
            print(cells)
    huge = decode["huge"]
    if "failed" in huge:
        print(f"\none file of 2.4 TB: FAILED: {huge['failed']}")
        return
    peak = huge["memory_kib"]["peak_rss"] / 1024
    mark = "met" if peak <= 256 else "NOT met"
    print(f"\none file of {huge['bytes'] / 1e12:.1f} TB, 4 KiB at {huge['offsets']} places: "
          f"{huge['seconds']:.1f} s, daemon's peak RSS {peak:.0f} MiB  goal <= 256: {mark}")


def print_pack(pack: dict) -> None:
    """Goals: half as fast as cp -r, memory that does not grow with the array, ten million lines soon."""
    def goal(figure: float, compare: str, limit: float, unit: str = "") -> str:
        mark = "met" if COMPARE[compare](figure, limit) else "NOT met"
        return f"goal {compare} {limit:g}{unit}: {mark}"

    def failed(name: str) -> bool:
        if "failed" in pack[name]:
            print(f"\n{name}: FAILED: {pack[name]['failed']}")
        return "failed" in pack[name]

    def memory(runs: list[dict]) -> float:
        return max(run["peak_rss_kib"] for run in runs) / 1024

    quick = " (quick)" if pack["quick"] else ""
    if not failed("copying"):
        result = pack["copying"]
        print(f"\ncopying whole arrays{quick}: {result['files']} chunks, {result['bytes'] >> 20} MiB, in "
              f"{result['shards']} shards or in files of their own,\nall of it in the page cache; shardfs "
              f"syncs what it writes and reads all of it back")
        times = {how: median(run["seconds"] for run in runs) for how, runs in result["runs"].items()}
        print("  speed as a ratio: of the medians, [smallest and largest within a round]")
        print(f"  {'':12s}{'seconds':>9s}{'MB/s':>7s}{'CPU, s':>8s}{'peak RSS, MiB':>15s}"
              f"{'/ cp -r, sync':>35s}{'/ cp -r':>19s}")
        for how, runs in result["runs"].items():
            cells = (f"  {how:12s}{times[how]:9.2f}{result['bytes'] / times[how] / 1e6:7.0f}"
                     f"{median(run['cpu'] for run in runs):8.2f}")
            if not how.startswith("cp"):
                cells += f"{memory(runs):15.1f}  {goal(memory(runs), '<', 100):18s}"
                for other in ("cp -r, sync", "cp -r"):
                    rounds = [a["seconds"] / b["seconds"] for a, b in zip(result["runs"][other], runs)]
                    cells += (f"{times[other] / times[how]:5.2f} "
                              f"[{min(rounds):.2f}, {max(rounds):.2f}]  ")
                cells += goal(times["cp -r"] / times[how], ">=", 0.5)
            print(cells)
        if result["stolen_seconds"] > 1:
            print(f"  warning: the host took {result['stolen_seconds']} s of CPU time meanwhile")
    if not failed("listing"):
        result = pack["listing"]
        print(f"\nlooking at {result['chunks']:,} chunks of {result['chunk_bytes']} bytes in "
              f"{result['shards']} shard{'s' * (result['shards'] > 1)}{quick}, into a pipe")
        print(f"  {'':14s}{'seconds':>9s}{'CPU, s':>8s}{'million chunks/s':>18s}{'peak RSS, MiB':>15s}")
        for how, runs in result["runs"].items():
            seconds = median(run["seconds"] for run in runs)
            marks = ""
            if how == "ls":
                marks = f"  {goal(seconds, '<', 5, ' s')}, {goal(memory(runs), '<', 100, ' MiB')}"
            print(f"  {how:14s}{seconds:9.2f}{median(run['cpu'] for run in runs):8.2f}"
                  f"{result['chunks'] / seconds / 1e6:18.2f}{memory(runs):15.1f}{marks}")


def print_requests(requests: dict) -> None:
    """Requests for each chunk file, and which they are."""
    print(f"\nrequests for each of {requests['files']} chunk files, on a fresh mount")
    for part in ("reads", "writes"):
        if "failed" in requests[part]:
            print(f"  {part}: FAILED: {requests[part]['failed']}")
            continue
        for pattern, counts in requests[part].items():
            each = {name.lower(): number / requests["files"] for name, number in counts.items()}
            most = sorted((item for item in each.items() if item[1] >= 0.005), key=lambda item: -item[1])
            print(f"  {pattern:28s}{sum(each.values()):7.2f}  "
                  + " ".join(f"{name} {number:.2f}" for name, number in most))


def print_remote(remote: dict) -> None:
    """Goals: as fast as programs that read whole objects, and one request for one chunk."""
    each_mount = ["requests", "MiB fetched", "peak RSS, MiB", "CPU, s", "mounting, s"]

    def mark(figure: float, limit: float, unit: str = "") -> str:
        return f"goal <= {limit:.4g}{unit}: {'met' if figure <= limit else 'NOT met'}"

    def part(name: str) -> dict | None:
        if "failed" in remote[name]:
            print(f"\n{name}: FAILED: {remote[name]['failed']}")
            return None
        return remote[name]

    def shards(result: dict) -> str:
        of = "one shard" if result["shards"] == 1 else f"{result['shards']} shards"
        return f"{of} ({result['files']} chunk files)"

    def table(runs: dict[str, list[dict]], columns: list[str], cells: dict[str, list[str]]) -> None:
        """What a mount has cost stands behind the other figures."""
        widths = [max(9, len(column)) for column in [*columns, *each_mount]]
        print(f"  {'':18s}" + "".join(f"  {c:>{w}s}" for c, w in zip([*columns, *each_mount], widths)))
        for how, figures in runs.items():
            line = cells[how] + (mount_cells(how, figures) if "remote" in figures[0] else [])
            print(f"  {how:18s}" + "".join(f"  {cell:>{w}s}" for cell, w in zip(line, widths)))
        for how, figures in runs.items():
            bad = [f"{sum(run['remote'][name] for run in figures)} {name}"
                   for name in ("throttled", "lost", "failed") if "remote" in figures[0]
                   and any(run["remote"][name] for run in figures)]
            if bad:
                print(f"  warning: {how}: requests that were {', '.join(bad)}, in all rounds")

    def mount_cells(how: str, runs: list[dict]) -> list[str]:
        requests, fetched = (median(run["remote"][name] for run in runs) for name in ("requests", "bytes"))
        asked = [f"{requests:.0f}", f"{fetched / 2**20:.1f}"] if how == "shardfs" else ["-", "-"]
        peak = max(run["memory_kib"]["peak_rss"] for run in runs) / 1024
        return [*asked, f"{peak:.1f}", f"{median(run['daemon_cpu'] for run in runs):.2f}",
                f"{median(run['mount_seconds'] for run in runs):.3f}"]

    def ratio(runs: dict[str, list[dict]], above: str, below: str, limit: float | None = None) -> None:
        if not (above in runs and below in runs):
            return
        one, other = ([run["seconds"] for run in runs[how]] for how in (above, below))
        rounds = [a / b for a, b in zip(one, other)]
        value = median(one) / median(other)
        line = (f"  {above + ' / ' + below:34s} {value:7.2f} {min(one) / min(other):6.2f}  "
                f"[{min(rounds):.2f}, {max(rounds):.2f}]")
        print(f"{line}  {mark(value, limit) if limit else ''}".rstrip())

    def transfers(result: dict) -> None:
        runs = result["runs"]
        times = {how: median(run["seconds"] for run in figures) for how, figures in runs.items()}
        table(runs, ["seconds", "MB/s"], {how: [f"{seconds:.3f}", f"{result['bytes'] / seconds / 1e6:.0f}"]
                                          for how, seconds in times.items()})
        print("  ratio of the medians, of the fastest, [smallest and largest within a round]")

    quick = " (quick)" if remote["quick"] else ""
    direct = median(remote["direct_seconds"]) * 1000
    print(f"\nreading a bucket{quick}: {remote['shards']} shards of {remote['shard_files']} chunks of "
          f"{remote['chunk_bytes'] >> 10} KiB, a round trip of {remote['latency_ms']:g} ms away;\n"
          f"each on a fresh mount, each program with new connections. Without the round trip the gateway answers a GET\n"
          f"of a chunk in {direct:.1f} ms. 'shardfs, local' mounts the same files from this machine, 'shardfs, rclone'\n"
          f"what rclone mounts of the bucket, with its cache of files")
    if "stolen_seconds" in remote and remote["stolen_seconds"] > 1:
        print(f"  warning: the host took {remote['stolen_seconds']} s of CPU time meanwhile")
    for name, goal in (("copying one shard", 1.5), ("copying all shards", 1.25)):
        if result := part(name):
            print(f"\ncp -r of {shards(result)}, {result['bytes'] >> 20} MiB; boto3: the objects into files, "
                  f"tensorstore: into memory")
            transfers(result)
            ratio(result["runs"], "shardfs", "boto3", goal)
            for other in ("tensorstore", "shardfs, local"):
                ratio(result["runs"], "shardfs", other)
            ratio(result["runs"], "shardfs, rclone", "shardfs")
    if result := part("random chunks"):
        for name, title in (("first", "the first chunk of each shard, whose index is not there yet"),
                            ("others", f"{result['chunks']} random chunks of these shards")):
            runs = {how: [run[name] for run in figures] for how, figures in result["runs"].items()}
            all_times = {how: sorted(1000 * seconds for run in figures for seconds in run["seconds"])
                         for how, figures in runs.items()}
            print(f"\n{title}, one after the other;\n'one GET': of the chunk's bytes, by obstore")
            table(runs, ["median, ms", "95 %, ms", "worst, ms"],
                  {how: [f"{median(times):.1f}", f"{times[int(0.95 * len(times))]:.1f}", f"{times[-1]:.1f}"]
                   for how, times in all_times.items()})
            if name == "others":
                more = median(all_times["shardfs"]) - median(all_times["one GET"])
                print(f"  the median of shardfs is one GET and {more:.1f} ms  {mark(more, 10, ' ms')}")
    for name in ("listing one shard", "listing all shards"):
        if result := part(name):
            get = median(seconds for run in result["runs"]["one GET"] for seconds in run["seconds"])
            runs = {how: figures for how, figures in result["runs"].items() if how != "one GET"}
            times = {how: median(run["seconds"] for run in figures) for how, figures in runs.items()}
            print(f"\nls -lR of {shards(result)}; one GET takes {get * 1000:.1f} ms")
            table(runs, ["seconds"], {how: [f"{seconds:.3f}"] for how, seconds in times.items()})
            more = (times["shardfs"] - times["shardfs, local"]) / get
            goal = mark(more, 3) if result["shards"] == 1 else ""
            print(f"  shardfs takes {more:.2f} GETs longer than on local files  {goal}".rstrip())
            ratio(runs, "shardfs, rclone", "shardfs")
    if result := part("zarr-python"):
        print(f"\nzarr-python, {result['threads']} threads, all {result['bytes'] >> 20} MiB: chunk by chunk from "
              f"a mount; 'obstore': shard by shard from S3")
        transfers(result)
        ratio(result["runs"], "shardfs", "obstore", 2)
        ratio(result["runs"], "shardfs", "shardfs, local")


def print_remote_write(written: dict) -> None:
    """Goals: of one chunk, not the shard is sent; a new shard is sent once."""
    def mark(figure: float, limit: float) -> str:
        return f"goal <= {limit:.4g}: {'met' if figure <= limit else 'NOT met'}"

    quick = " (quick)" if written["quick"] else ""
    print(f"\nwriting to a bucket{quick}, a round trip of {written['latency_ms']:g} ms away. 'assembled': the store "
          f"makes shards of what it has and of\nwhat is new (the server of the tests); 'as a whole': it does not "
          f"(radosgw). Bytes on the wire, in both directions, with all headers")
    one = written["one chunk"]
    if "failed" in one:
        print(f"\none chunk: FAILED: {one['failed']}")
    else:
        sizes = " and ".join(f"{size['shard'] >> 20} MiB with an index of {size['index'] / 1024:.0f} KiB ({store})"
                             for store, size in one["sizes"].items())
        print(f"\none chunk of {one['chunk_bytes'] >> 10} KiB in a full shard, durable: {sizes};\n"
              f"'first': the first one of a mount or program, which does not know the index yet")
        print(f"  {'':26s}{'first, s':>10s}{'then, s':>10s}{'first, KiB':>12s}{'then, KiB':>12s}")
        for store, programs in one["runs"].items():
            for how, runs in programs.items():
                first, then = ({key: median(value for run in runs for value in run[key][part])
                                for key in ("seconds", "bytes")} for part in (slice(1), slice(1, None)))
                goal = mark(then["bytes"] / 1024, one["goal"] / 1024) if (store, how) == ("assembled", "shardfs") else ""
                print(f"  {store + ', ' + how:26s}{first['seconds']:10.3f}{then['seconds']:10.3f}"
                      f"{first['bytes'] / 1024:12.1f}{then['bytes'] / 1024:12.1f}  {goal}".rstrip())
    new = written["new shard"]
    if "failed" in new:
        print(f"\na new shard: FAILED: {new['failed']}")
        return
    print(f"\na new shard of {new['chunks']} chunks, {new['bytes'] / 2**20:.1f} MiB: cp -r and fsync of the root; boto3: the "
          f"object as it is then")
    print(f"  {'':26s}{'seconds':>10s}{'wire / its bytes':>18s}{'stored / its bytes':>20s}")
    for store, programs in new["runs"].items():
        times = {how: median(run["seconds"] for run in runs) for how, runs in programs.items()}
        for how, runs in programs.items():
            wire, stored = (median(run[key] for run in runs) / new["bytes"] for key in ("bytes", "stored"))
            goal = mark(wire, 1.05) if (store, how) == ("assembled", "shardfs") else ""
            print(f"  {store + ', ' + how:26s}{times[how]:10.3f}{wire:18.3f}{stored:20.3f}  {goal}".rstrip())
        print(f"  {store + ', shardfs / boto3':26s}{times['shardfs'] / times['boto3']:10.2f}  "
              f"{mark(times['shardfs'] / times['boto3'], 1.5)}")


def main() -> None:
    with open(sys.argv[1]) as file:
        report = json.load(file)
    print_head(report)
    for name, result in report["sets"].items():
        print_set(name, result)
    if "write" in report:
        print_write(report["write"])
    if "decode" in report:
        print_decode(report["decode"])
    if "pack" in report:
        print_pack(report["pack"])
    if "requests" in report:
        print_requests(report["requests"])
    if "remote" in report:
        print_remote(report["remote"])
    if "remote_write" in report:
        print_remote_write(report["remote_write"])


if __name__ == "__main__":
    main()
