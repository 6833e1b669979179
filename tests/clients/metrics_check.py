"""Reads the metrics of a mount as others do, and compares them with its counters."""

import argparse
import json
import re
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

# Where the counters are that stats.json has in these sections.
COUNTERS = {
    "operations": {
        "read_bytes": "shardfs_read_bytes_total",
        "write_bytes": "shardfs_written_bytes_total",
        "entries": "shardfs_directory_entries_total",
        "errors": "shardfs_request_errors_total",
        "forget": "shardfs_forgotten_inodes_total",
    },
    "source": {
        "read_bytes": "shardfs_source_read_bytes_total",
        "write_bytes": "shardfs_source_written_bytes_total",
    },
    "indexes": {
        "loads": "shardfs_index_loads_total",
        "load_bytes": "shardfs_index_read_bytes_total",
        "hits": "shardfs_index_cache_hits_total",
        "changed": "shardfs_changed_shards_total",
        "damaged": "shardfs_damaged_shards_total",
    },
    "decoded": {"chunks": "shardfs_decoded_chunks_total", "bytes": "shardfs_decoded_bytes_total"},
    "ahead": {"chunks": "shardfs_pushed_chunks_total", "bytes": "shardfs_pushed_bytes_total"},
    "commits": {
        "commits": "shardfs_commits_total",
        "chunks": "shardfs_committed_chunks_total",
        "chunk_bytes": "shardfs_committed_bytes_total",
        "failed": "shardfs_failed_chunks_total",
    },
    "remote": {"requests": "shardfs_store_requests_total", "bytes": "shardfs_store_fetched_bytes_total"},
}
OPERATIONS = {"open": "open", "stat": "stat", "read": "read", "list": "list", "write": "write", "syncs": "sync"}


def values(text: str, parser) -> dict:
    """The samples, by name and labels."""
    samples = (sample for family in parser(text) for sample in family.samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def check_histograms(metrics: dict) -> None:
    """Buckets grow to the count, and a request takes time."""
    counts = {labels: value for (name, labels), value in metrics.items()
              if name == "shardfs_request_duration_seconds_count"}
    assert counts[(("operation", "lookup"),)] > 0, counts
    for labels, count in counts.items():
        buckets = [(float(dict(key)["le"]), value) for (name, key), value in metrics.items()
                   if name == "shardfs_request_duration_seconds_bucket" and set(labels) < set(key)]
        cumulative = [value for _, value in sorted(buckets)]
        assert len(cumulative) == 15 and cumulative == sorted(cumulative), (labels, buckets)
        assert cumulative[-1] == count, (labels, buckets)
        took = metrics["shardfs_request_duration_seconds_sum", labels]
        assert (took > 0) == (count > 0), (labels, took)


def check_copy(metrics: dict, args: argparse.Namespace) -> None:
    """A copy has the same samples with a label more; the dashboard and the page name no others."""
    text = args.copy.read_text()
    copy = values(text, prometheus)
    assert {dict(labels)["mount"] for _, labels in copy} == {"two"}
    here = {(name, tuple(label for label in labels if label[0] != "mount")) for name, labels in copy}
    assert here == metrics.keys(), here ^ metrics.keys()
    types = {family.name: family.type for family in prometheus(text)}
    assert types["shardfs_read_bytes"] == "counter" and "unknown" not in types.values(), types
    # The exporter refuses descriptions that differ from file to file.
    described = [line for line in args.other.read_text().splitlines() if line.startswith("#")]
    missing = [line for line in described if line not in text.splitlines()]
    assert described and not missing, missing
    names = {name for name, _ in metrics}
    named = set(re.findall(r"shardfs_\w+", args.dashboard.read_text()))
    json.loads(args.dashboard.read_text())
    assert named <= names, named - names
    of_page = set(re.findall(r"`(shardfs_\w+)`", args.page.read_text()))
    bare = {re.sub("_(bucket|sum|count)$", "", name) for name in names}
    assert of_page == bare, of_page ^ bare


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mount", type=Path)
    parser.add_argument("--uncommitted", type=int)
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--dashboard", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    control = args.mount / ".shardfs"
    before = json.loads((control / "stats.json").read_text())
    text = (control / "metrics").read_text()
    after = json.loads((control / "stats.json").read_text())
    metrics = values(text, openmetrics)
    # The older format, which collectors of text files read.
    assert values(text, prometheus).keys() == metrics.keys()

    def check(section: str, counter: str, key: tuple) -> None:
        low, high = before[section][counter], after[section][counter]
        # Reading these files is counted as well.
        assert low <= metrics[key] <= high, (section, counter, low, metrics[key], high)

    for section, counters in COUNTERS.items():
        for counter, name in counters.items():
            check(section, counter, (name, ()))
    for counter, operation in OPERATIONS.items():
        check("source", counter, ("shardfs_source_operations_total", (("operation", operation),)))
    assert before["operations"]["read_bytes"] > 0
    check_histograms(metrics)
    transport = (("transport", before["transport"]["name"]),)
    assert metrics["shardfs_mount_info", transport] == 1
    reads = metrics["shardfs_source_read_duration_seconds_count", ()]
    assert 0 < reads <= after["source"]["read"], (reads, after["source"])
    if args.copy:
        check_copy(metrics, args)
    uncommitted = metrics.get(("shardfs_uncommitted_bytes", ()))
    assert uncommitted == args.uncommitted, uncommitted


main()
