"""Results: a line for each."""
import os
import sys

CLIENTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Differences(Exception):
    """What is wrong with one array."""

    def __init__(self, found):
        super().__init__(f"{'; '.join(found[:6])}{f' ... {len(found)} differences' if len(found) > 6 else ''}")
        self.found = found


class Skipped(Exception):
    """Why an array need not be in the view."""


def attempt(name, work, *arguments):
    try:
        words = work(*arguments)
        print("ok", f"{name}: {words}" if words else name, flush=True)
    except Skipped as reason:
        print("skipped:", f"{name}: {reason}", flush=True)
    except Exception as error:
        words = str(error) if isinstance(error, (Differences, AssertionError)) and str(error) else \
            f"{type(error).__name__}: {error} ({line_of(error)})"
        print("FAIL", f"{name}: {' '.join(words.split())[:900]}", flush=True)


def line_of(error):
    """Where it was raised, the innermost line of these scripts."""
    found, trace = "?", error.__traceback__
    while trace:
        path = trace.tb_frame.f_code.co_filename
        if path.startswith(CLIENTS + os.sep):
            found = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def one(options, work, name):
    try:
        print(f"ok   {name}: {work()}")
    except Skipped as reason:
        print(f"skipped: {name}: {reason}")
    except Differences as error:
        print(*[f"FAIL {name}: {words}" for words in error.found], sep="\n")
        sys.exit(1)
