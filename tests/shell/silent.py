"""A mount of a process that takes every request and answers none, as one that waits for a dead disk.

    silent.py SOURCE MOUNTPOINT

Says "mounted" once it is there, and serves until it is killed. As root.
"""

import ctypes
import os
import struct
import sys

FUSE_INIT = 26
# unique, and the node and caller after it
IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")
# major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran; the rest is zero
INIT_OUT = struct.Struct("<IIIIHHII36x")

source, mountpoint = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(source.encode(), mountpoint.encode(), b"fuse.shardfs", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
while True:
    try:
        request = os.read(device, 1 << 20)
    except OSError:
        # It was unmounted.
        break
    _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
    if opcode == FUSE_INIT:
        answer = INIT_OUT.pack(7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1)
        os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(answer), 0, unique) + answer)
