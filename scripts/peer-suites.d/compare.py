#!/usr/bin/env python3
"""Compares two reports of one test suite: compare.py SUITE PLAIN MOUNT EXPECTED

Reports are those of pytest (JUnit's XML) or of pjdfstest. EXPECTED has a line for each kind of failure that
is expected in the mount:

    SUITE | TEST | MESSAGE | REASON

A star in TEST and MESSAGE stands for anything. Lines that match no failure are failures, too.
"""
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def results(path):
    """Test -> passed, failed or skipped, and why it failed."""
    return junit(path) if path.endswith(".xml") else pjdfstest(path)


def junit(path):
    found = {}
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            found[name] = ("failed", (bad.get("message") or "").replace("\n", " "))
        else:
            found[name] = ("skipped" if case.find("skipped") is not None else "passed", "")
    return found


def pjdfstest(path):
    states = {"ok": "passed", "FAILED": "failed", "skipped": "skipped"}
    found, name = {}, None
    for line in Path(path).read_text(errors="replace").splitlines():
        words = line.split()
        if len(words) == 2 and words[1] in states and not line[0].isspace():
            name = words[0]
            found[name] = (states[words[1]], "")
        elif words and name in found and found[name][0] == "failed" and not line.startswith("Summary"):
            found[name] = ("failed", f"{found[name][1]} {' '.join(words)}".strip())
    return found


def pattern(text):
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL).fullmatch


def read_expected(path, suite):
    found = []
    for line in Path(path).read_text().splitlines():
        if line and not line.startswith("#"):
            of, test, message, reason = (part.strip() for part in line.split("|"))
            if of == suite:
                found.append((pattern(test), pattern(message), test, reason))
    return found


def main():
    suite, plain_path, mount_path, expected_path = sys.argv[1:]
    plain, mount = results(plain_path), results(mount_path)
    expected = read_expected(expected_path, suite)
    counts = [Counter(state for state, _ in found.values()) for found in (plain, mount)]
    print(f"{suite}: {counts[0]['passed']} tests passed in a plain directory, "
          f"{counts[1]['passed']} in the mount")
    reasons, met, wrong = Counter(), set(), []
    if not counts[0]["passed"]:
        wrong.append("nothing passed in a plain directory")
    for name, (state, why) in sorted(mount.items()):
        if state == "passed" or plain.get(name, ("failed", ""))[0] != "passed":
            continue
        why = why or state
        line = next((line for line in expected if line[0](name) and line[1](why)), None)
        if line is None:
            wrong.append(f"{name}: {why}")
        else:
            reasons[line[3]] += 1
            met.add(line[2])
    wrong += [f"{name}: did not run in the mount" for name in plain if name not in mount]
    wrong += [f"{test}: expected to fail, and does not" for _, _, test, _ in expected if test not in met]
    for reason, count in reasons.most_common():
        print(f"  expected: {count:4} x {reason}")
    for text in wrong:
        print(f"  FAIL {text[:300]}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
