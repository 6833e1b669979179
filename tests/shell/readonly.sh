#!/bin/bash
# A mount is read-only unless asked otherwise: every operation that would change something fails with
# EROFS, also for root, and the source stays as it was.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

snapshot() {
    (cd "$1" && find . -printf '%p %y %m %u %s %T@ %i\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

# attempt MOUNTPOINT: prints what did not end with EROFS
attempt() {
    python3 - "$1" <<'PY'
import errno
import os
import sys

root = sys.argv[1]
chunk, directory, meta = (os.path.join(root, p) for p in ("c/0", "c", "zarr.json"))
new = os.path.join(directory, "new")
absent = os.path.join(directory, "7")           # a chunk that could exist, but is empty
outside = os.path.dirname(root)


def opened(path, flags):
    os.close(os.open(path, flags, 0o644))


tries = {
    "open for writing": lambda: opened(chunk, os.O_WRONLY),
    "open for both": lambda: opened(chunk, os.O_RDWR),
    "open with O_TRUNC": lambda: opened(chunk, os.O_RDONLY | os.O_TRUNC),
    "open for appending": lambda: opened(chunk, os.O_WRONLY | os.O_APPEND),
    "open of zarr.json": lambda: opened(meta, os.O_WRONLY),
    "create": lambda: opened(new, os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda: opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "create of a chunk": lambda: opened(absent, os.O_WRONLY | os.O_CREAT),
    "create in the root": lambda: opened(os.path.join(root, "new"), os.O_WRONLY | os.O_CREAT),
    "truncate": lambda: os.truncate(chunk, 0),
    "unlink": lambda: os.unlink(chunk),
    "unlink of zarr.json": lambda: os.unlink(meta),
    "rename": lambda: os.rename(chunk, new),
    "rename over": lambda: os.rename(chunk, os.path.join(directory, "1")),
    "rename of a directory": lambda: os.rename(directory, os.path.join(root, "d")),
    "link": lambda: os.link(chunk, new),
    "symlink": lambda: os.symlink("0", new),
    "mkdir": lambda: os.mkdir(new),
    "rmdir": lambda: os.rmdir(directory),
    "mknod": lambda: os.mknod(new, 0o644),
    "mkfifo": lambda: os.mkfifo(new),
    "chmod": lambda: os.chmod(chunk, 0o600),
    "chmod of a directory": lambda: os.chmod(directory, 0o700),
    "chown": lambda: os.chown(chunk, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(chunk, (1, 1)),
    "setxattr": lambda: os.setxattr(chunk, "user.x", b"1"),
    "removexattr": lambda: os.removexattr(chunk, "user.x"),
    "stats.json": lambda: opened(os.path.join(root, ".shardfs/stats.json"), os.O_WRONLY),
    "create in .shardfs": lambda: opened(os.path.join(root, ".shardfs/new"), os.O_WRONLY | os.O_CREAT),
}
wrong = 0
for name, attempt in tries.items():
    try:
        attempt()
        outcome = "done"
    except OSError as e:
        outcome = errno.errorcode.get(e.errno, str(e.errno))
    if outcome != "EROFS":
        wrong += 1
        print(f"{name}: {outcome}")
sys.exit(wrong != 0)
PY
}

python3 "$here/shards.py" array "$TMP/a.zarr" 5 --only 0,1,2
before=$(snapshot "$TMP/a.zarr")
for options in "" "-o immutable" "-o ro" "-o xattr"; do
    # shellcheck disable=SC2086
    mount_view "$TMP/a.zarr" $options
    check "nothing can be changed (${options:-default})" attempt "$MP"
    unmount_view
done
unchanged() { diff <(echo "$before") <(snapshot "$TMP/a.zarr"); }
check "the source is as it was" unchanged
