#!/bin/bash
# Hostile shards and documents, many at once: what they take together is bounded.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

SRC=$TMP/source
READERS=6
mkdir "$SRC"
echo '{"zarr_format": 3, "node_type": "group"}' >"$SRC/zarr.json"

# A gzip stream of 200 MiB of zeros as each of the shards.
python3 - "$SRC/bomb" "$READERS" <<'PY'
import json
import os
import sys
import zlib

path, readers = sys.argv[1], int(sys.argv[2])
os.makedirs(f"{path}/c")
mib = 1 << 20
document = {
    "zarr_format": 3, "node_type": "array", "shape": [readers << 20], "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 20]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
    "codecs": [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1 << 20], "codecs": [{"name": "bytes"}], "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}}]}},
        {"name": "gzip", "configuration": {"level": 1}}],
}
json.dump(document, open(f"{path}/zarr.json", "w"))
# The last 16 bytes are the index: one chunk from 0, of 1 MiB.
packer = zlib.compressobj(1, wbits=31)
parts = [packer.compress(bytes(mib)) for _ in range(200)]
parts.append(packer.compress((0).to_bytes(8, "little") + mib.to_bytes(8, "little")))
parts.append(packer.flush())
for shard in range(readers):
    open(f"{path}/c/{shard}", "wb").writelines(parts)
PY

# Documents of as many values as there may be.
python3 - "$SRC" "$READERS" <<'PY'
import os
import sys

for number in range(int(sys.argv[2])):
    path = f"{sys.argv[1]}/document{number}"
    os.mkdir(path)
    with open(f"{path}/zarr.json", "w") as file:
        file.write('{"zarr_format": 3, "node_type": "group", "attributes": {"a": [')
        file.write("0," * 2_000_000 + "0]}}")
    os.mkdir(f"{path}-more")
    with open(f"{path}-more/zarr.json", "w") as file:
        file.write('{"zarr_format": 3, "node_type": "group", "attributes": {"a": [')
        file.write("[]," * 10_000_000 + "0]}}")
PY

# peak PID: the most memory that a process has had, in MiB
peak() { awk '$1 == "VmHWM:" { print int($2 / 1024) }' "/proc/$1/status"; }

shards() {
    mount_view "$SRC" -o threads=8
    local pid jobs=() shard
    pid=$(daemon_of "$MP")
    for ((shard = 0; shard < READERS; shard++)); do
        timeout 400 sh -c "head -c 1048576 '$MP/bomb/c/$shard' | sha256sum" >"$TMP/sum.$shard" &
        jobs+=($!)
    done
    wait "${jobs[@]}"
    # All of them could be read, and not all at once.
    [[ $(sort -u "$TMP"/sum.* | wc -l) == 1 ]]
    grep -q "$(head -c 1048576 /dev/zero | sha256sum)" "$TMP/sum.0"
    echo "$(peak "$pid") MiB"
    (($(peak "$pid") < 1100))
    unmount_view
}
check "shards that decode to 200 MiB each, all at once" shards

documents() {
    mount_view "$SRC" -o threads=8
    local pid jobs=() number
    pid=$(daemon_of "$MP")
    for ((number = 0; number < READERS; number++)); do
        timeout 400 stat "$MP/document$number/zarr.json" >/dev/null &
        jobs+=($!)
        timeout 400 ls "$MP/document$number-more" >/dev/null &
        jobs+=($!)
    done
    wait "${jobs[@]}"
    echo "$(peak "$pid") MiB"
    (($(peak "$pid") < 900))
    # Those beyond the limit are not understood, and said to be.
    [[ $(grep -c 'values, the limit is' "$MP/.shardfs/not-shown.txt") == "$READERS" ]]
    unmount_view
}
check "documents that take a hundred times their length, all at once" documents

no_memory() {
    new_mount_point
    # The shell's limit holds for the daemon: it cannot decode any of these shards.
    (ulimit -v 350000 && exec timeout 30 "$SHARDFS" mount -o threads=2 "$SRC" "$MP") </dev/null
    local pid
    pid=$(daemon_of "$MP")
    fails_with "Cannot allocate memory" timeout 60 sha256sum "$MP/bomb/c/0"
    # It is as alive as before.
    [[ $(daemon_of "$MP") == "$pid" ]]
    ls "$MP/bomb" >/dev/null
    python3 "$here/shards.py" array "$SRC/small" 5
    sleep 1.2
    cat "$MP/small/c/0" >/dev/null
    unmount_view
}
check "where there is no memory one request fails, and the daemon goes on" no_memory

# forgotten MOUNT-POINT N: whether the kernel has forgotten at least N files.
forgotten() {
    python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["operations"]["forget"] < int(sys.argv[2]))' \
        "$1/.shardfs/stats.json" "$2"
}

known_files() {
    local pid before
    mkdir -p "$TMP/many/d"
    python3 - "$TMP/many/d" <<'PY'
import os
import sys

for number in range(140_000):
    os.close(os.open(f"{sys.argv[1]}/f{number}", os.O_CREAT))
PY
    echo here >"$TMP/many/d/f0"
    mount_view "$TMP/many" --rw --shard 1M
    pid=$(daemon_of "$MP")
    before=$(stat -c %i "$MP/d/f0")
    # Two are open, one of them is removed meanwhile.
    exec 5<"$MP/d/f0" 6<"$MP/d/f1"
    rm "$MP/d/f1"
    python3 -c 'import os, sys; [entry.stat(follow_symlinks=False) for entry in os.scandir(sys.argv[1])]' "$MP/d"
    within 60 forgotten "$MP" 5000
    [[ $(cat <&5) == here && $(readlink "/proc/$BASHPID/fd/5") == "$MP/d/f0" ]]
    [[ $(stat -L -c %i "/proc/$BASHPID/fd/5") == "$before" && -z $(cat <&6) ]]
    exec 5<&- 6<&-
    # It is the same file as before, and what was forgotten can be used as ever.
    [[ $(cat "$MP/d/f0") == here && $(stat -c %i "$MP/d/f0") == "$before" ]]
    echo more | tee "$MP"/d/f{2,3,4,5,6,7} >/dev/null
    [[ $(cat "$MP"/d/f{2,3,4,5,6,7} | sort -u) == more ]]
    rm "$MP"/d/f2
    mv "$MP/d/f3" "$MP/d/g"
    echo "$(peak "$pid") MiB"
    (($(peak "$pid") < 120))
    unmount_view
    [[ ! -e $TMP/many/d/f2 && $(cat "$TMP/many/d/g") == more ]]
}
check "where arrays are created, the kernel forgets files that nothing uses" known_files
