#!/bin/bash
# unpack, pack and repack that are interrupted or killed: the same command finishes the work.
#
#     tests/shell/pack_killed.sh [ROUNDS]      kills of each command; 50 if not given

# A hundred and fifty commands that sync thousands of files: beside other work a disk takes long.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# What is killed is a process, not the machine: files in memory do as well, and are synced at once.
# A container may have little of it.
megabytes=$(df --output=avail -B 1M /dev/shm 2>/dev/null | tail -n 1) || megabytes=0
[[ ! -w /dev/shm ]] || ((megabytes < 1024)) || export TMPDIR=${TMPDIR:-/dev/shm}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

rounds=${1:-50}
cd "$TMP"
sf=$SHARDFS
same_files() { diff -r "$1" "$2"; }
# All files of a directory, by content.
sum_of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

PYTHONPATH=$repo/tests/shell python3 - <<'PY'
# 24 MiB in 3072 chunks; every shard has dead space.
import json, os, random, struct
from shards import crc32c
import zlib
os.makedirs("big.zarr/c")
r = random.Random(1)
for shard in range(6):
    body, entries = bytearray(4096), []
    for chunk in range(512):
        data = r.randbytes(4096 + r.randrange(8192))
        body += bytes(r.randrange(2) * 500)
        entries += [len(body), len(data)]
        body += data
    index = struct.pack("<1024Q", *entries)
    open(f"big.zarr/c/{shard}", "wb").write(body + index + struct.pack("<I", crc32c(index)))
codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [4096],
    "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]
json.dump({"zarr_format": 3, "node_type": "array", "shape": [6 * 512 * 4096], "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512 * 4096]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs, "attributes": {}},
    open("big.zarr/zarr.json", "w"))
PY
cp -r big.zarr big-source.zarr
source_sum=$(sum_of big-source.zarr)
milliseconds() {
    local from=${EPOCHREALTIME/[.,]/}
    "$@" >/dev/null
    echo $(((${EPOCHREALTIME/[.,]/} - from) / 1000 + 1))
}
# Kills a command at a random moment; once in a while it is faster.
killed() {
    local most=$1 pid
    shift
    "$@" >/dev/null 2>&1 &
    pid=$!
    sleep "$(printf '0.%03d' $((RANDOM % (most > 999 ? 999 : most))))"
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# is_complete COPY: its note is gone; the empty directory of the note may be left.
is_complete() {
    [[ -e $1/zarr.json && ! -e $1/.shardfs/job.json ]] || return 1
    rmdir "$1/.shardfs" 2>/dev/null || true
}

# interrupted SIGNAL WORDS COMMAND...: it ends by the signal, and says WORDS before.
interrupted() {
    local signal=$1 words=$2 i pid rc said=$TMP/interrupted
    shift 2
    # It may be done before it is interrupted.
    for ((i = 0; i < 200; i++)); do
        rm -rf killed.zarr repacked.zarr
        cp -r big.zarr repacked.zarr
        # A job of a script ignores SIGINT.
        # shellcheck disable=SC2016 # Perl's.
        perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$@" >/dev/null 2>"$said" &
        pid=$! rc=0
        # From when it has begun, however long that takes.
        until [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "${sf##*/}" ]]; do sleep 0.002; done
        sleep "0.$(printf %03d $((RANDOM % 300)))"
        kill -s "$signal" "$pid" 2>/dev/null || true
        wait "$pid" || rc=$?
        [[ ! -s $said ]] || break
    done
    cat "$said"
    ((rc == 128 + $(kill -l "$signal"))) || { echo "exit $rc"; return 1; }
    [[ $(<"$said") == "shardfs: interrupted; $words" ]]
}
interrupted_commands_say_how_to_go_on() {
    local again='the same command continues where it stopped'
    interrupted INT "$again" "$sf" unpack big-source.zarr killed.zarr
    [[ ! -e killed.zarr/zarr.json ]]
    "$sf" unpack big-source.zarr killed.zarr
    "$sf" unpack big-source.zarr all.zarr
    same_files all.zarr killed.zarr
    interrupted TERM "$again" "$sf" pack all.zarr killed.zarr --shard 1048576
    interrupted INT "every shard is whole, $again" "$sf" repack repacked.zarr
    # Nothing is left under another name either.
    interrupted TERM 'nothing was written' "$sf" refs big.zarr --inline 100000 --force -o big.json
    [[ -z $(find . -name '.shardfs-*') ]]
    rm -rf killed.zarr all.zarr repacked.zarr
    # Whoever ignores the signal is not interrupted.
    (trap '' INT; "$sf" unpack big-source.zarr all.zarr & sleep 0.05; kill -s INT $!; wait $!)
    rm -rf all.zarr
}
check "an interrupted command says that the same command goes on" interrupted_commands_say_how_to_go_on

unpack_is_killed() {
    local most i times=0
    most=$(milliseconds "$sf" unpack big-source.zarr whole.zarr)
    for ((i = 0; i < rounds; i++)); do
        rm -rf killed.zarr
        # Some are killed more than once.
        for ((times = 0; times <= i % 3; times++)); do
            [[ -e killed.zarr/zarr.json ]] || killed "$most" "$sf" unpack big-source.zarr killed.zarr
        done
        is_complete killed.zarr || "$sf" unpack big-source.zarr killed.zarr
        same_files whole.zarr killed.zarr
    done
    [[ $(sum_of big-source.zarr) == "$source_sum" ]]
}
check "unpack, killed $rounds times, ends with the same files" unpack_is_killed

pack_is_killed() {
    local most i times=0
    most=$(milliseconds "$sf" pack whole.zarr packed-whole.zarr --shard 1048576 --order f)
    for ((i = 0; i < rounds; i++)); do
        rm -rf killed.zarr
        for ((times = 0; times <= i % 3; times++)); do
            [[ -e killed.zarr/zarr.json ]] || killed "$most" "$sf" pack whole.zarr killed.zarr --shard 1048576 --order f
        done
        is_complete killed.zarr ||
            "$sf" pack whole.zarr killed.zarr --shard 1048576 --order f
        same_files packed-whole.zarr killed.zarr
    done
}
check "pack, killed $rounds times, ends with the same shards" pack_is_killed

repack_is_killed() {
    local most i
    cp -r big.zarr repacked.zarr
    most=$(milliseconds "$sf" repack repacked.zarr)
    for ((i = 0; i < rounds; i++)); do
        rm -rf killed.zarr
        cp -r big.zarr killed.zarr
        killed "$most" "$sf" repack killed.zarr
        # Readers see every chunk, whatever was left.
        if ((i % 10 == 0)); then
            rm -rf seen.zarr
            "$sf" unpack killed.zarr seen.zarr
            same_files whole.zarr seen.zarr
        fi
        ((i % 2)) || "$sf" recover killed.zarr
        ((i % 2)) || [[ ! -e killed.zarr/.shardfs ]]
        "$sf" repack killed.zarr
        same_files repacked.zarr killed.zarr
    done
}
check "repack, killed $rounds times, ends with the same shards" repack_is_killed
