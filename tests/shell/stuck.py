"""A mount whose process cannot end when it is killed: a thread waits for a page of a file whose read is not answered.

    stuck.py MOUNTPOINT [GUARD]

Serves one file, "file". Says "stuck" once the thread waits. The program GUARD is started as the guard of the
mount before, as shardfs does. As root.
"""

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

LOOKUP, GETATTR, OPEN, READ, INIT, OPENDIR = 1, 3, 14, 15, 26, 27
STORE = 4
# unique, and the node and caller after it
IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")
# major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran; the rest is zero
INIT_OUT = struct.Struct("<IIIIHHII36x")
# ino, size, blocks, three times, their nanoseconds, mode, links, owner, group, device, block size, flags
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
NBYTES = 4096


def attr(node):
    mode = 0o40755 if node == 1 else 0o100644
    return ATTR.pack(node, NBYTES, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, NBYTES, 0)


def answer_to(opcode, node):
    """Returns the answer to a request; None if there will be none."""
    if opcode == INIT:
        return INIT_OUT.pack(7, 31, 0, 0, 12, 9, 1 << 16, 1)
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attr(2)
    if opcode == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + attr(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    return None


def push(device):
    content = bytes(NBYTES)
    pushed = struct.pack("<QQII", 2, 0, NBYTES, 0) + content
    os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(pushed), STORE, 0) + pushed)


def serve(device):
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        answer = answer_to(opcode, node)
        if answer is not None:
            os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(answer), 0, unique) + answer)
        elif opcode == READ:
            pusher = threading.Thread(target=push, args=[device], daemon=True)
            pusher.start()
            status = f"/proc/self/task/{pusher.native_id}/stat"
            while open(status).read().rsplit(")")[1].split()[0] != "D":
                time.sleep(0.01)
            print("stuck", flush=True)
            return


mountpoint, guard = sys.argv[1], sys.argv[2:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"stuck", mountpoint.encode(), b"fuse.stuck", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
if guard:
    # Not by a request: nothing is answered yet.
    table = [line.split() for line in open("/proc/self/mountinfo")]
    number = next(line[2].split(":")[1] for line in table if line[4] == mountpoint)
    said = subprocess.Popen(["shardfs-guard", number, str(os.getpid())], executable=guard[0], stdout=subprocess.PIPE)
    assert said.stdout.readline() == b"ready\n"
threading.Thread(target=serve, args=[device], daemon=True).start()
# Another process: who waits for an answer cannot end, either.
subprocess.run(["cat", mountpoint + "/file"], stdout=subprocess.DEVNULL)
