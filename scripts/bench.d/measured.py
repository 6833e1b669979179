#!/usr/bin/env python3
"""Run a command and write down what it took: seconds, seconds of CPU, and peak RSS.
usage: measured.py FILE COMMAND...

A small process between the measurement and the command: until a child executes its program it has its
parent's memory, and the peak counts that."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    file, *command = sys.argv[1:]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    Path(file).write_text(json.dumps({
        "seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_rss_kib": usage.ru_maxrss,
        "ended_with": process.returncode}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
