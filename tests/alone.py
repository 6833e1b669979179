#!/usr/bin/env python3
"""Runs a command in a mount namespace of its own, without the mounts that other scripts have: they would live as long as
it does. Daemons of those are held up only for a moment, as one process detaches all of them.

    KEEP=DIRECTORY tests/alone.py COMMAND...     mounts below DIRECTORY stay
"""

import ctypes
import os
import re
import sys

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)
keep = os.environb[b"KEEP"]


def call(function, *arguments):
    if function(*arguments) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), function.__name__)


def mounts():
    """Mount points and types, those below others first."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    for line in reversed(lines):
        mount, _, filesystem = line.partition(b" - ")
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), mount.split(b" ")[4])
        yield point, filesystem.split(b" ")[0]


call(libc.unshare, CLONE_NEWNS)
call(libc.mount, b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
for point, filesystem in mounts():
    if filesystem == b"fuse.shardfs" and not point.startswith(keep + b"/"):
        libc.umount2(point, MNT_DETACH)
os.execvp(sys.argv[1], sys.argv[1:])
