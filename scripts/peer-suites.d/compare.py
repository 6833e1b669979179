#!/usr/bin/env python3
"""Compares two reports of one test suite: compare.py SUITE PLAIN.xml MOUNT.xml EXPECTED

EXPECTED has a line for each kind of failure that is expected in the mount:

    SUITE PATTERN REASON...

PATTERN is matched like a file name against CLASS::TEST; blanks stand for nothing in it.
"""
import fnmatch
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def results(path):
    """Test -> passed, failed or skipped, and why it failed."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            found[name] = ("failed", (bad.get("message") or "").splitlines()[:1])
        else:
            found[name] = ("skipped" if case.find("skipped") is not None else "passed", [])
    return found


def main():
    suite, plain_path, mount_path, expected_path = sys.argv[1:]
    plain, mount = results(plain_path), results(mount_path)
    expected = []
    for line in Path(expected_path).read_text().splitlines():
        if line and not line.startswith("#"):
            of, pattern, reason = line.split(" ", 2)
            if of == suite:
                expected.append((pattern, reason))
    counts = [Counter(state for state, _ in found.values()) for found in (plain, mount)]
    print(f"{suite}: {counts[0]['passed']} tests passed in a plain directory, "
          f"{counts[1]['passed']} in the mount")
    reasons, unexpected = Counter(), []
    for name, (state, why) in sorted(mount.items()):
        if state != "failed" or plain.get(name, ("failed", []))[0] == "failed":
            continue
        reason = next((reason for pattern, reason in expected
                       if fnmatch.fnmatchcase(name, pattern)), None)
        if reason is None:
            unexpected.append(f"{name}: {' '.join(why)}")
        else:
            reasons[reason] += 1
    missing = [name for name in plain if name not in mount]
    for reason, count in reasons.most_common():
        print(f"  expected: {count:4} x {reason}")
    for text in unexpected + [f"{name}: did not run in the mount" for name in missing]:
        print(f"  FAIL {text[:300]}")
    sys.exit(bool(unexpected or missing))


if __name__ == "__main__":
    main()
