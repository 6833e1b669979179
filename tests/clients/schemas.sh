#!/bin/bash
# What the commands print for programs, and stats.json, are as docs/schemas says; and nothing else would pass.
#
#     tests/clients/schemas.sh
#
# SHARDFS_CORPUS: where the corpus is. The validator comes from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
schemas=$repo/docs/schemas
checker() { "${SHARDFS_VENVS:-$repo/target/venvs}/schemas/bin/python" "$here/schemas_check.py" "$@"; }

# says SCHEMA CODE ARGUMENT...: the program ends with CODE, and its output is kept in $said.
says() {
    local schema=$1 code=$2 rc=0 file
    shift 2
    file=$(mktemp "$said/$schema.XXXXXX")
    timeout 60 "$SHARDFS" "$@" >"$file" 2>"$said.errors" </dev/null || rc=$?
    if [[ $rc != "$code" ]]; then
        echo "exit $rc, expected $code: $*"
        cat "$said.errors"
        return 1
    fi
}

# stats: stats.json of the mount is kept as well.
stats() { cat "$MP/.shardfs/stats.json" >"$(mktemp "$said/stats.XXXXXX")"; }

# as_described COMMAND...: what is kept meanwhile is as its schema says.
as_described() {
    local said
    said=$(mktemp -d "$TMP/said.XXXXXX")
    "$@"
    checker "$schemas" conform "$said"/*
}

fresh_sample() {
    rm -rf "$TMP/sample.zarr"
    "$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null
}

# --- schemas -----------------------------------------------------------------------------------------

check "the schemas are valid, describe every member, and name the codes of the documentation" \
    checker "$schemas" schemas --page "$repo/docs/COMMANDS.md"

# is_refused WORDS FILE SCRIPT: a schema that sed has changed by a script is refused with these words.
is_refused() {
    rm -rf "$TMP/schemas"
    cp -r "$schemas" "$TMP/schemas"
    sed -i "$3" "$TMP/schemas/$2"
    ! cmp -s "$schemas/$2" "$TMP/schemas/$2" || return 1
    fails_with "$1" checker "$TMP/schemas" schemas
}
others_are_refused() {
    is_refused 'not valid under any of the given schemas' ls.schema.json 's/"type": "string"/"type": "text"/'
    is_refused 'ls: shard: no description' ls.schema.json '/File of the shard/d'
    is_refused 'delete: path: beside it any member is permitted' delete.schema.json '/additionalProperties/d'
    is_refused 'status: mounts.writable: no type' status.schema.json 's/, "type": "boolean"//'
    is_refused 'resize: removed_shards: no minimum' resize.schema.json 's/, "minimum": 0//'
}
check "a schema that is none, or leaves something open, is refused" others_are_refused

# --- sources -----------------------------------------------------------------------------------------

# Arrays of every layout, and with every kind of metadata.
arrays=$TMP/arrays
make_arrays() {
    local layout
    mkdir "$arrays"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$arrays/zarr.json"
    for layout in nested start compressed rank-0; do
        python3 "$repo/tests/shell/arrays.py" make "$arrays/$layout" "$layout"
    done
    # Without a fixed length of items.
    sed -i 's/"data_type": "uint8"/"data_type": "string"/' "$arrays/start/zarr.json"
    "$SHARDFS" create "$arrays/unsharded" --shape 4,6 --dtype float32 --chunk 2,3 --shard 2,3 --codec crc32c \
        --dim-names y, --fill NaN --attrs '{"unit": "mm", "scale": [1.5, null]}'
    mkdir -p "$arrays/unsharded/c/0" "$arrays/unsharded/c/9"
    head -c 28 /dev/zero | tee "$arrays/unsharded/c/9/9" >"$arrays/unsharded/c/0/0"
    "$SHARDFS" create "$arrays/times" --shape 10 --chunk 2 --shard 10 \
        --dtype '{"name": "numpy.datetime64", "configuration": {"unit": "D", "scale_factor": 1}}'
    mkdir "$arrays/v2" "$arrays/bad" "$arrays/.shardfs"
    echo '{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<u2", "compressor": null, "fill_value": 0,
        "order": "C", "filters": null}' >"$arrays/v2/.zarray"
    printf 1234 >"$arrays/v2/0"
    echo '{' >"$arrays/bad/zarr.json"
}
make_arrays >/dev/null

# Shards of the sample with one defect each: one that is cut off, one that is none, a chunk with a byte that was
# changed, a file outside the grid.
make_damaged() {
    fresh_sample
    damaged=$TMP/damaged.zarr
    cp -r "$TMP/sample.zarr" "$damaged"
    truncate -s 1000 "$damaged/waves/c/0/0/1"
    : >"$damaged/waves/c/0/1/1"
    printf '\377' | dd of="$damaged/waves/c/0/0/0" bs=1 seek=1000 conv=notrunc status=none
    cp "$TMP/sample.zarr/waves/c/0/0/0" "$damaged/waves/c/0/0/9"
}
make_damaged

# --- commands ----------------------------------------------------------------------------------------

infos() {
    says info 0 info --json "$TMP/sample.zarr"
    says info 0 info --json "$TMP/sample.zarr/waves"
    says info 0 info --json --level 1 "$arrays/nested"
    says info 1 info --json "$damaged"
    # What new arrays are like, right and wrong.
    echo '{"shard": ["**/time=off", "256M"], "index_location": "start"}' >"$arrays/.shardfs/mount.json"
    says info 1 info --json "$arrays"
    echo '{"shard": "big"}' >"$arrays/.shardfs/mount.json"
    says info 1 info --json "$arrays"
    # A group of none, and what cannot be listed.
    mkdir "$TMP/empty"
    cp "$arrays/zarr.json" "$TMP/empty"
    says info 0 info --json "$TMP/empty"
    cp -r "$TMP/sample.zarr" "$TMP/unlisted"
    rm -r "$TMP/unlisted/waves/c/0/1"
    touch "$TMP/unlisted/waves/c/0/1"
    says info 1 info --json "$TMP/unlisted"
}
check "info of arrays of each kind, damaged ones too" as_described infos

lists() {
    says ls 0 ls --json "$TMP/sample.zarr"
    says ls 0 ls --json --long "$TMP/sample.zarr" waves/c/0/0
    says ls 0 ls --json --null -l "$TMP/sample.zarr"
    says ls 0 ls --json --missing "$TMP/sample.zarr"
    says ls 0 ls --json --level 0 "$TMP/sample.zarr"
    says ls 0 ls --json --level 1 -l "$arrays/nested"
    says ls 1 ls --json -l "$arrays"
    says ls 1 ls --json "$damaged"
    says ls 1 ls --json --missing "$damaged"
    says ls 0 ls --json "$TMP/sample.zarr" waves/c/99
    cp -r "$TMP/sample.zarr" "$TMP/outside"
    "$SHARDFS" resize --keep-outside "$TMP/outside/waves" --shape 60,30,30
    says ls 0 ls --json --outside -l "$TMP/outside"
    # Chunks without an offset, without bytes, and without dimensions.
    grep -F '"offset":null' "$said"/*
    grep -F '"nbytes":0' "$said"/*
    grep -F '"chunk":[]' "$said"/*
}
check "ls with each of its options" as_described lists

# finds SEVERITY CODE...: a finding of each code is among what was kept.
finds() {
    local severity=$1 code
    shift
    for code; do
        grep -q "^{\"severity\":\"$severity\",\"code\":\"$code\"," "$said"/* || {
            echo "no $severity: $code"
            return 1
        }
    done
}
findings() {
    says verify 0 verify --json "$TMP/sample.zarr"
    says verify 0 verify --json --decode "$TMP/sample.zarr"
    says verify 1 verify --json "$damaged"
    says verify 1 verify --json --decode "$damaged"
    says verify 1 verify --json --decode "$arrays"
    says verify 0 verify --json --level 1 "$arrays/nested"
    finds defect metadata damage undecodable length no-bytes stray
    finds note dead
    # What is beside shards, and outside of the shape.
    local copy=$TMP/beside
    cp -r "$TMP/outside" "$copy"
    touch "$copy/waves/c/0/0/0.__lock" "$copy/waves/c/0/0/notes"
    # A group that says something else of its array.
    python3 - "$copy" <<'PY'
import json
import sys

def load(path):
    with open(f"{sys.argv[1]}/{path}") as f:
        return json.load(f)

group, array = load("zarr.json"), load("waves/zarr.json")
array["shape"][0] += 1
group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {"waves": array}}
with open(f"{sys.argv[1]}/zarr.json", "w") as f:
    json.dump(group, f)
PY
    # An entry of a shard that leads out of it.
    PYTHONPATH=$repo/tests/shell python3 - "$copy/waves/c/0/0/0" <<'PY'
import struct
import sys

from shards import crc32c

with open(sys.argv[1], "rb") as f:
    data = bytearray(f.read())
index = bytearray(data[-1028:-4])
struct.pack_into("<2Q", index, 16, 1 << 40, 9)
data[-1028:] = index + struct.pack("<I", crc32c(index))
with open(sys.argv[1], "wb") as f:
    f.write(data)
PY
    says verify 1 verify --json "$copy"
    finds defect consolidated entry
    finds note lock no-key outside
    # A codec that is not known.
    cp -r "$TMP/sample.zarr" "$TMP/unknown"
    sed -i 's/"gzip"/"banana"/' "$TMP/unknown/waves/zarr.json"
    says verify 0 verify --json --decode "$TMP/unknown"
    finds note not-decoded
    # A damaged inner shard.
    cp -r "$arrays/nested" "$TMP/inner"
    python3 - "$TMP/inner/c/0/0" <<'PY'
import sys

with open(sys.argv[1], "r+b") as f:
    for at in range(0, 25000, 40):
        f.seek(at)
        f.write(b"\xff")
PY
    says verify 1 verify --json "$TMP/inner"
}
check "verify, with defects and notes" as_described findings

creates() {
    local new=$TMP/new.zarr
    says create 0 create --json --dry-run "$new" --shape 100,200 --dtype uint16 --codec zstd --chunk 10,10 --shard 50,50
    says create 0 create --json "$new" --shape 100,200 --dtype uint16 --codec zstd --chunk 10,10 --shard 50,50
    says create 0 create --json --force "$new" --shape 8 --dtype float64 --chunk 4 --dim-names x --attrs '{"a": [1]}'
    says create 0 create --json "$TMP/point.zarr" --shape '' --dtype uint8
    says create 0 create --json "$TMP/void.zarr" --shape 0,5 --dtype r24 --fill '[1, 2, 3]'
    grep -F '"written": false' "$said"/*
    grep -F '"replaces": true' "$said"/*
}
check "create" as_described creates

# zarr-python writes bare words, which are no JSON.
bare_words() {
    local array=$TMP/words.zarr attributes='{"a": [NaN, Infinity, -Infinity], "b": "\udc80"}'
    says create 0 create --json --shape 8 --chunk 2 --shard 4 --dtype float32 --attrs "$attributes" "$array"
    grep NaN "$array/zarr.json"
    says info 0 info --json "$array"
    grep '"NaN"' "$said"/info.*
    "$SHARDFS" info "$array" | grep -F 'a [NaN,Infinity,-Infinity], b "\udc80"'
}
check "what is no JSON in a document is a string" as_described bare_words

resizes() {
    cp -r "$TMP/sample.zarr" "$TMP/resized"
    says resize 0 resize --json --dry-run "$TMP/resized/waves" --shape 32,80,120
    says resize 0 resize --json "$TMP/resized/waves" --shape 32,80,120
    says resize 0 resize --json "$TMP/resized/waves" --shape 320,80,120
    says resize 0 resize --json --keep-outside "$TMP/resized/waves" --shape 2,8,12
    says resize 0 resize --json "$TMP/resized/waves" --shape 0,8,12
}
check "resize" as_described resizes

deletes() {
    local id=0123456789abcdef0123456789abcdef left
    cp -r "$TMP/resized" "$TMP/group"
    says delete 0 delete --json --dry-run "$TMP/group/waves"
    says delete 0 delete --json "$TMP/group/waves"
    says delete 0 delete --json --recursive "$TMP/group"
    # As a command leaves it that was killed.
    left=$TMP/.gone.shardfs-$id
    mkdir -p "$left/old/c"
    printf '{"shardfs": "unfinished", "version": 1, "id": "%s", "what": {"purpose": "delete", "name": "gone"}}' "$id" \
        >"$left/job.json"
    says delete 0 delete --json "$TMP/gone"
    grep -F '"kind": "leftovers"' "$said"/*
}
check "delete" as_described deletes

copies() {
    local source=$TMP/source.zarr packed=$TMP/packed.zarr
    cp -r "$TMP/sample.zarr" "$source"
    echo notes >"$source/notes"
    mkfifo "$source/pipe"
    says pack 0 unpack --json "$source" "$TMP/chunks.zarr"
    says pack 0 pack --json "$TMP/chunks.zarr" "$packed" --shard 64,64,-1
    says pack 0 pack --json --force "$TMP/chunks.zarr" "$packed" --shard 256K --dedup
    says pack 0 repack --json "$packed" "$TMP/morton.zarr" --order morton --index start
    # One of another rank, and a node that cannot be used.
    cp -r "$arrays/unsharded" "$source"
    says pack 0 pack --json "$source" "$TMP/mixed.zarr" --shard 64,64,-1
    cp -r "$arrays/bad" "$source"
    says pack 1 pack --json --skip-damaged "$source" "$TMP/some.zarr" --shard x2
    # What is damaged is left out only if that is asked for; then the copy is resumed.
    mkdir "$TMP/below"
    cp "$arrays/zarr.json" "$TMP/below"
    says pack 1 pack --json "$damaged" "$TMP/below/rest.zarr" --shard 64,64,64
    says verify 1 verify --json "$TMP/below"
    finds defect unfinished-copy
    says pack 1 pack --json --skip-damaged "$damaged" "$TMP/below/rest.zarr" --shard 64,64,64
    says pack 1 unpack --json --skip-damaged "$damaged" "$TMP/rest.zarr"
    grep -F '"resumed": true' "$said"/*
    grep -F '"other_rank": true' "$said"/*
}
check "unpack, pack and repack to another place, of damaged ones too" as_described copies

repacks() {
    cp -r "$damaged" "$TMP/repacked"
    says repack 0 repack --json "$TMP/packed.zarr"
    says repack 0 repack --json "$TMP/packed.zarr" --order f
    says repack 1 repack --json "$TMP/repacked"
    cp "$TMP/beside/waves/c/0/0/0" "$TMP/repacked/waves/c/0/0/0"
    says repack 1 repack --json --skip-damaged "$TMP/repacked"
    grep -F '"shards_cut": 1' "$said"/*
}
check "repack in place" as_described repacks

# --- mounts ------------------------------------------------------------------------------------------

read_only() {
    mount_view "$TMP/sample.zarr"
    find "$MP" -type f -exec cat {} + >/dev/null
    fails_with '' cat "$MP/waves/c/0/0/no-chunk"
    stats
    says status 0 status --json "$MP"
    unmount_view
    mount_view "$TMP/sample.zarr" -o transport=classic,immutable
    stats
    grep -F '"name": "classic"' "$MP/.shardfs/stats.json"
    says status 0 status --json "$MP"
    unmount_view
}
check "status and stats.json of mounts that are read" as_described read_only

written() {
    local one
    mount_view "$TMP/sample.zarr" --view zarr3,zarr2,npy,raw,flat
    one=$MP
    cat "$one/npy/waves/c/0/0/0.npy" >/dev/null
    stats
    mount_view "$TMP/sample.zarr" --rw --commit-interval 60
    cp "$MP/waves/c/0/0/0" "$TMP/chunk"
    cp "$TMP/chunk" "$MP/waves/c/0/0/1"
    stats
    says status 0 status --json "$MP" "$one"
    "$SHARDFS" sync "$MP"
    stats
    says status 0 status --json "$MP"
    grep -F '"last_commit": "' "$MP/.shardfs/stats.json"
    unmount_view
    unmount_view "$one"
}
check "of one with all views, and of one that is written to" as_described written

ended() {
    local pid one
    mount_view "$TMP/sample.zarr"
    one=$MP
    mount_view "$TMP/sample.zarr" --rw
    pid=$(daemon_of "$MP")
    kill -s KILL "$pid"
    within 60 has_ended "$pid"
    says status 1 status --json "$one" "$MP"
    grep -F '"state": "dead"' "$said"/*
    "$SHARDFS" umount "$MP" || true
    unmount_view "$one"
}
check "of one whose process was killed" as_described ended

# --- the corpus --------------------------------------------------------------------------------------

# of_corpus HIGHEST SOURCE...: no command ends with a higher code.
of_corpus() {
    local highest=$1 source command file rc
    shift
    for source; do
        for command in "info --json" "ls --json --long" "verify --json --decode"; do
            file=${source#"$corpus/"}
            file=$said/${command%% *}.${file//\//+}
            rc=0
            # shellcheck disable=SC2086 # several words
            timeout 60 "$SHARDFS" $command "$source" >"$file" 2>"$said.errors" </dev/null || rc=$?
            if ((rc > highest)); then
                echo "exit $rc: $command $source"
                cat "$said.errors"
                return 1
            fi
            # What cannot be opened at all.
            if ((rc == 2)); then
                [[ ! -s $file ]]
                rm "$file"
            fi
        done
    done
}
if corpus=$(corpus_dir); then
    # shellcheck source=../corpus_lib.sh
    . "$repo/tests/corpus_lib.sh"
    corpus_stores "$corpus" zarr2,zarr3,draft2022,bloscpack,bcolz | cut -d ' ' -f 1 | sed "s|^|$corpus/|" >"$TMP/stores"
    mapfile -t stores <"$TMP/stores"
    check "info, ls and verify of ${#stores[@]} sources of the corpus" as_described of_corpus 0 "${stores[@]}"
    check "of its damaged ones" as_described of_corpus 2 "$corpus"/data/malformed/* "$corpus"/data/malformed_other/*
else
    skip "no corpus: set SHARDFS_CORPUS"
fi

# --- what is wrong -----------------------------------------------------------------------------------

wrong_ones_are_refused() {
    local wrong=$TMP/wrong file
    mkdir "$wrong"
    read -r file < <(grep -lF '"written": true' "$TMP"/said.*/delete.*)
    checker "$schemas" conform "$file"
    sed 's/"written": true/"written": "yes"/' "$file" >"$wrong/delete.type"
    fails_with "'yes' is not of type 'boolean'" checker "$schemas" conform "$wrong/delete.type"
    sed 's/"written": true/"written": true, "unknown": 1/' "$file" >"$wrong/delete.unknown"
    fails_with "'unknown' was unexpected" checker "$schemas" conform "$wrong/delete.unknown"
    sed '/"written": true/d' "$file" >"$wrong/delete.missing"
    fails_with "'written' is a required property" checker "$schemas" conform "$wrong/delete.missing"
    sed 's/"files": [0-9]*/"files": NaN/' "$file" >"$wrong/delete.word"
    fails_with "NaN is not JSON" checker "$schemas" conform "$wrong/delete.word"
    read -r file < <(grep -lF '"severity"' "$TMP"/said.*/verify.*)
    sed '$d' "$file" >"$wrong/verify.end"
    fails_with "no summary at its end" checker "$schemas" conform "$wrong/verify.end"
}
check "an output with another member or type is refused" wrong_ones_are_refused
check "and so is every other wrong member, type, word and number, in each place" \
    checker "$schemas" refuse "$TMP"/said.*/*.??????
check "there is no member in the schemas that no output has" checker "$schemas" complete "$TMP"/said.*/*.??????
