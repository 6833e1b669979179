#!/bin/bash
# Open chunk files whose name goes to another file, is removed, or has contents that are refused: they stay the
# files that they are, and the others are not disturbed.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

cat >"$TMP/open_chunks.py" <<'PY'
"""open_chunks.py DIRECTORY CASE [HOW]: chunks have 4 KiB."""
import json
import mmap
import os
import sys
import time

directory, case, how = (*sys.argv[1:], "")[:3]
# After a second the kernel looks names up, and attributes, that it had cached.
SECOND = 1.2


def path(number):
    return f"{directory}/{number}"


def put(name, byte):
    with open(path(name), "wb") as file:
        file.write(byte * 4096)


def get(name):
    with open(path(name), "rb") as file:
        return file.read()


def old_name():
    """A file that is open has another name; its old one is given to another file, in each way."""
    put("0", b"A")
    put("3", b"C")
    os.sync()
    file = os.open(path("0"), os.O_RDWR)
    reader = os.open(path("0"), os.O_RDONLY)
    mapping = mmap.mmap(file, 0)
    mapping[:5] = b"DIRTY"
    if how == "link":
        os.link(path("0"), path("1"))
        os.unlink(path("0"))
    else:
        os.rename(path("0"), path("1"))
    {"rename": os.rename, "link": os.rename, "link onto": os.link}[how](path("3"), path("0"))
    for _ in range(2):
        time.sleep(SECOND)
        assert os.stat(path("1")).st_size == 4096 and get("0") == b"C" * 4096
        assert os.fstat(file).st_ino == os.stat(path("1")).st_ino
        assert os.pread(file, 5, 0) == os.pread(reader, 5, 0) == b"DIRTY"
    assert os.pwrite(file, b"Z", 4095) == 1
    mapping[5:7] = b"ER"
    mapping.flush()
    os.fsync(file)
    mapping.close()
    os.close(file)
    os.close(reader)
    assert get("1") == b"DIRTYER" + b"A" * 4088 + b"Z" and get("0") == b"C" * 4096


def removed():
    """What is removed can be read by whoever has it open, and has attributes."""
    put("0", b"A")
    if how == "committed":
        with open(path("0")) as file:
            os.fsync(file.fileno())
    for mode in os.O_RDONLY, os.O_RDWR:
        put("1", b"B")
        file = os.open(path("1"), mode)
        os.unlink(path("1"))
        time.sleep(SECOND)
        assert os.pread(file, 2, 0) == b"BB" and os.fstat(file).st_size == 4096
        os.close(file)
    file = os.open(path("0"), os.O_RDONLY)
    os.unlink(path("0"))
    time.sleep(SECOND)
    assert os.pread(file, 2, 0) == b"AA" and os.fstat(file).st_size == 4096
    os.close(file)


def removed_decoded():
    """The same of a chunk whose items are shown."""
    npy = [name for name in os.listdir(directory) if name.endswith(".npy")]
    suffix = ".npy" if npy else ".raw"
    name = "0" + suffix
    header = get(name)[:-4096] if npy else b""
    with open(path(name), "wb") as file:
        file.write(header + b"A" * 4096)
        file.flush()
        if how == "committed":
            os.fsync(file.fileno())
    if how == "committed":
        time.sleep(SECOND)
    file = os.open(path(name), os.O_RDONLY)
    size = os.fstat(file).st_size
    assert os.pread(file, 2, size - 2) == b"AA"
    os.unlink(path(name))
    for _ in range(2):
        time.sleep(SECOND)
        assert os.fstat(file).st_size == size == 4096 + len(header)
        assert os.pread(file, 1 << 20, 0) == header + b"A" * 4096
    os.close(file)


def replaced():
    """Whoever has a chunk open that is replaced goes on reading what the kernel has of it, and sees its attributes."""
    put("0", b"A")
    if how == "committed":
        with open(path("0")) as file:
            os.fsync(file.fileno())
    file = os.open(path("0"), os.O_RDONLY)
    assert os.pread(file, 1, 0) == b"A"
    with open(path("0.tmp"), "wb") as new:
        new.write(b"B" * 4096)
    os.rename(path("0.tmp"), path("0"))
    for _ in range(2):
        assert os.pread(file, 1 << 20, 0) == b"A" * 4096 and os.fstat(file).st_size == 4096
        assert get("0") == b"B" * 4096
        time.sleep(SECOND)
    os.close(file)


def invalid(act, file):
    try:
        act(file)
    except OSError as error:
        assert error.strerror == "Invalid argument", error
    else:
        sys.exit("it was not refused")


def refused():
    """In a view that decodes: others see what is stored while one has written what is no chunk."""
    put("0.raw", b"A")
    os.rename(path("0.raw"), path("1.raw"))
    file = os.open(path("1.raw"), os.O_RDWR)
    os.pwrite(file, b"B", 0)
    os.fsync(file)
    stored = b"B" + b"A" * 4095
    os.ftruncate(file, 5)
    invalid(os.fsync, file)
    assert get("1.raw") == stored
    assert os.stat(path("1.raw")).st_ino == os.fstat(file).st_ino
    # Whoever opens it for writing as well shares what is written, and hears of the refusal.
    invalid(os.close, os.open(path("1.raw"), os.O_RDWR))
    assert sorted(os.listdir(directory)) == ["1.raw"]
    invalid(os.close, file)
    assert get("1.raw") == stored


def document():
    """Whoever has a document open that is replaced reads it to its end, and sees its attributes."""
    name = ".zattrs" if how == "zarr2" else "zarr.json"
    with open(path(name), "rb") as file:
        first = file.read()
    file = os.open(path(name), os.O_RDONLY)
    text = first
    for number in range(3):
        attributes = {"number": str(number) * 1000}
        now = json.loads(first)
        now = {**now, **attributes} if how == "zarr2" else {**now, "attributes": attributes}
        with open(path(name + ".tmp"), "w") as new:
            json.dump(now, new)
        os.rename(path(name + ".tmp"), path(name))
        assert os.fstat(file).st_size == len(text), (os.fstat(file).st_size, len(text))
        assert os.pread(file, 1 << 20, 0) == text
        time.sleep(SECOND)
        assert os.fstat(file).st_size == len(text) and os.pread(file, 1 << 20, 0) == text
        os.close(file)
        file = os.open(path(name), os.O_RDONLY)
        text = os.pread(file, 1 << 20, 0)
        assert json.loads(text) == now
    os.close(file)


{"document": document, "old name": old_name, "removed": removed, "removed decoded": removed_decoded, "replaced": replaced, "refused": refused}[case]()
PY

# open_chunks CASE HOW OPTIONS: OPTIONS of mount, or "plain" for an ordinary directory.
open_chunks() {
    local options place
    place=$(mktemp -d "$TMP/place.XXXXXX")
    if [[ $3 == plain ]]; then
        python3 "$TMP/open_chunks.py" "$place" "$1" "$2"
        return
    fi
    read -ra options <<<"$3"
    "$SHARDFS" create "$place/a" --shape 32768 --dtype uint8 --chunk 4096 --shard 16384
    mount_view "$place/a" --rw "${options[@]}"
    mkdir -p "$MP/c"
    python3 "$TMP/open_chunks.py" "$MP/c" "$1" "$2"
    unmount_view
    "$SHARDFS" verify --decode "$place/a"
}
for options in plain '--commit-interval 60' '--commit-interval 0.1' '-o sync'; do
    for how in rename link 'link onto'; do
        check "an open chunk that has another name stays when its old one goes to another file ($how, $options)" \
            open_chunks 'old name' "$how" "$options"
    done
    for how in committed uncommitted; do
        check "an open chunk that is removed keeps its bytes and attributes ($how, $options)" \
            open_chunks removed "$how" "$options"
        check "an open chunk that is replaced is read as it was ($how, $options)" open_chunks replaced "$how" "$options"
    done
done
for options in '--view raw' '--view raw -o sync'; do
    check "while one has written to a chunk what is refused, others use what is stored ($options)" \
        open_chunks refused '' "$options"
done
for options in '--view raw' '--view raw -o sync' '--view npy -o missing=fill'; do
    for how in committed uncommitted; do
        check "an open chunk that is removed keeps its bytes and attributes ($how, $options)" \
            open_chunks 'removed decoded' "$how" "$options"
    done
done

# open_document VIEW [OPTION...]
open_document() {
    local place
    place=$(mktemp -d "$TMP/place.XXXXXX")
    "$SHARDFS" create "$place/a" --shape 32768 --dtype uint8 --chunk 4096 --shard 16384 --attrs '{"a": 1}'
    mount_view "$place/a" --rw --view "$@"
    python3 "$TMP/open_chunks.py" "$MP" document "$1"
    unmount_view
}
for options in zarr3 'zarr3 -o sync' zarr2; do
    # shellcheck disable=SC2086 # Words.
    check "an open document that is replaced is read to its end as it was ($options)" open_document $options
done
