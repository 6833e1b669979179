"""Runs a program to which a filter of system calls (seccomp) refuses io_uring_setup, as container engines do.

    without_rings.py PROGRAM [ARGUMENT...]
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
# Code, jump if true, jump if false, value: struct sock_filter. The same number on every architecture.
LOAD_NUMBER, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
IO_URING_SETUP, ALLOW, FAIL = 425, 0x7FFF0000, 0x00050000
steps = [(LOAD_NUMBER, 0, 0, 0), (IF_EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
program = struct.pack("@HP", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
