#!/bin/bash
# unpack, pack and repack: what they keep, what they refuse, and what they leave behind when they fail.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

cd "$TMP"
sf=$SHARDFS
arrays() { python3 "$repo/tests/shell/arrays.py" "$@"; }
json() { python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }
digest_of() { "$@" --json | json 'd["arrays"][0]["digest"]'; }
same_files() { diff -r "$1" "$2"; }
# All files of a directory, by content.
sum_of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

"$sf" create --sample sample.zarr

# --- there and back ----------------------------------------------------------------------------------

is_the_same_again() {
    "$sf" unpack sample.zarr chunks.zarr | grep >/dev/null '^waves: 192 chunks, .* in 192 files$'
    [[ $(find chunks.zarr -name .shardfs) == "" ]]
    "$sf" pack chunks.zarr packed.zarr --shard 64,64,64 | grep >/dev/null 'in 4 files$'
    arrays check packed.zarr
    "$sf" unpack packed.zarr again.zarr
    same_files chunks.zarr again.zarr
}
check "what was packed is unpacked to the same files" is_the_same_again

# 4 x 7 x 8 chunks of 8 KiB.
has_shards_by_rule() {
    local rule=$1 shape=$2
    "$sf" pack --force chunks.zarr by-rule.zarr --shard "$rule"
    "$sf" info --json by-rule.zarr/waves | json 'd["arrays"][0]["shard_shape"]' | grep -Fx "$shape"
    arrays check by-rule.zarr
    "$sf" unpack --force by-rule.zarr again.zarr
    same_files chunks.zarr again.zarr
}
check "shards of at most so many bytes" has_shards_by_rule 256K '[32, 64, 64]'
check "shards of so many chunks along the last axes" has_shards_by_rule x4,8 '[16, 64, 128]'
check "an array whose shards would have one chunk stays without" has_shards_by_rule 8K None

of_sharded() {
    local file rule=$1
    "$sf" pack --force sample.zarr by-rule.zarr --shard "$rule"
    file=$(find by-rule.zarr/waves/c -type f -printf '%s\n' | sort -n | tail -n 1)
    ((file <= 8192))
    "$sf" info --json by-rule.zarr/waves | json 'd["arrays"][0]["shard_shape"]' | grep -Fx None
    same_files chunks.zarr/waves/c by-rule.zarr/waves/c
    "$sf" repack --force sample.zarr by-rule.zarr --shard "$rule" --index start
    "$sf" info --json by-rule.zarr/waves >info.json
    json 'd["arrays"][0]["shard_shape"], d["arrays"][0]["chunk_shape"]' <info.json
    json 'd["arrays"][0]["shard_shape"] == d["arrays"][0]["chunk_shape"]' <info.json | grep -Fx True
    "$sf" unpack --force by-rule.zarr again.zarr
    same_files chunks.zarr again.zarr
}
check "a rule by which shards have one chunk leaves no larger shards of the source" of_sharded 8K
check "the same by a number of chunks" of_sharded x1,1,1

is_a_view() {
    mount_view sample.zarr
    same_files "$MP" chunks.zarr
    unmount_view
}
check "unpacked files are what a mount shows" is_a_view

has_other_files() {
    cp -r sample.zarr noted.zarr
    echo 'a note' >noted.zarr/README
    mkdir noted.zarr/waves/tables
    echo 1,2 >noted.zarr/waves/tables/a.csv
    ln -s ../README noted.zarr/waves/about
    setfattr -n user.origin -v 'the station' noted.zarr/README
    "$sf" unpack noted.zarr noted-chunks.zarr | grep >/dev/null '^3 other files$'
    [[ $(readlink noted-chunks.zarr/waves/about) == ../README ]]
    [[ $(getfattr --only-values -n user.origin noted-chunks.zarr/README) == 'the station' ]]
    [[ $(<noted-chunks.zarr/README) == 'a note' && $(<noted-chunks.zarr/waves/tables/a.csv) == 1,2 ]]
}
check "other files come along" has_other_files

# Beside an array of another format as well, whose own files do not.
beside_another_format() {
    mkdir -p mixed/old/meta mixed/old/data
    cp -r sample.zarr mixed/new.zarr
    echo notes >mixed/notes
    python3 - mixed/old <<'PY'
import struct
import sys

top = sys.argv[1]
with open(f"{top}/meta/sizes", "w") as file:
    file.write('{"shape": [4, 2], "nbytes": 32}')
with open(f"{top}/meta/storage", "w") as file:
    file.write('{"dtype": "int32", "chunklen": 2, "dflt": 0, "cparams": {}}')
with open(f"{top}/__attrs__", "w") as file:
    file.write("{}")
for number in range(2):
    # A Blosc buffer that is not compressed.
    chunk = struct.pack("<4i", *range(number * 4, number * 4 + 4))
    buffer = struct.pack("<4BIII", 2, 1, 2, 4, len(chunk), len(chunk), len(chunk) + 16) + chunk
    with open(f"{top}/data/__{number}.blp", "wb") as file:
        file.write(b"blpk\x01\0\0\0" + struct.pack("<q", 1) + buffer)
PY
    "$sf" pack mixed mixed-packed --shard 1M >said
    grep '^1 other file$' said
    cmp mixed/notes mixed-packed/notes
    [[ $(ls -A mixed-packed/old) == $'c\nzarr.json' ]]
    "$sf" verify --decode mixed-packed | grep ': 0 defects'
}
check "other files beside an array of BLZ come along" beside_another_format

names_what_is_left_out() {
    rm -rf grown.zarr grown-packed.zarr grown-again.zarr
    cp -r chunks.zarr grown.zarr
    cp grown.zarr/waves/c/0/0/0 grown.zarr/waves/c/0/0/99
    "$sf" pack --json --shard -1,-1,-1 grown.zarr grown-packed.zarr 2>said | grep >/dev/null '"outside": 1,'
    grep >/dev/null 'waves: left out: 1 file outside the array' said
    cp grown-packed.zarr/waves/c/0/0/0 grown-packed.zarr/waves/c/9.9.9
    cp grown-packed.zarr/waves/c/0/0/0 grown-packed.zarr/waves/c/0/0/7
    "$sf" unpack grown-packed.zarr grown-again.zarr 2>said
    grep >/dev/null 'waves: left out: 1 file outside the array' said
}
check "files outside the grid that are not copied are reported" names_what_is_left_out

not_in_a_mount() {
    local command
    cp -r sample.zarr mounted.zarr
    mount_view mounted.zarr --rw
    for command in unpack 'pack --shard -1,-1,-1'; do
        # shellcheck disable=SC2086 # its options
        fails_with "create it in the source, as $PWD/mounted.zarr/copy" "$sf" $command sample.zarr "$MP/copy"
    done
    unmount_view
    [[ ! -e mounted.zarr/copy ]]
    rm -r mounted.zarr
}
check "no copy is begun in a mount, where it could not be completed" not_in_a_mount

has_files_between_chunks() {
    "$sf" unpack sample.zarr between.zarr
    mkdir -p between.zarr/waves/c/sub/empty between.zarr/waves/c/0/9 between.zarr/empty
    echo data >between.zarr/waves/c/sub/f
    echo note >between.zarr/waves/c/notes
    ln -s ../../notes between.zarr/waves/c/0/0/link
    mkfifo between.zarr/pipe between.zarr/waves/c/0/pipe
    "$sf" unpack between.zarr between-chunks 2>left | grep >/dev/null '^3 other files$'
    [[ $(sort left) == "shardfs: pipe: left out: it is a named pipe"$'\n'"shardfs: waves/c/0/pipe: left out: it is a named pipe" ]]
    rm between.zarr/pipe between.zarr/waves/c/0/pipe
    rmdir between.zarr/waves/c/0/9
    same_files between.zarr between-chunks
    mount_view between.zarr
    same_files "$MP" between-chunks
    unmount_view
    "$sf" pack between.zarr between-packed --shard 64,64,64 | grep >/dev/null '^3 other files$'
    [[ $(<between-packed/waves/c/sub/f) == data && -d between-packed/empty ]]
    "$sf" verify between-packed
}
check "files between chunk files and empty directories come along, pipes are named" has_files_between_chunks

modes() { stat -c '%a %n' "$@" | tr '\n' ' '; }
has_permissions() {
    cp -r sample.zarr private.zarr
    echo secret >private.zarr/waves/secret.txt
    chmod -R go-rwx private.zarr
    chmod 640 private.zarr/waves/c/0/0/1
    chmod 755 private.zarr private.zarr/waves
    (umask 022 && "$sf" unpack private.zarr private)
    [[ $(modes private private/waves private/waves/c/0) == "755 private 755 private/waves 700 private/waves/c/0 " ]]
    (cd private/waves && modes zarr.json secret.txt c/0/0/0 c/0/0/4 c/0/4) >said
    [[ $(<said) == "600 zarr.json 600 secret.txt 600 c/0/0/0 640 c/0/0/4 700 c/0/4 " ]]
    find private/waves/c -type f -exec chmod 664 {} +
    chmod 640 private/waves/c/0/0/4
    (umask 022 && "$sf" pack private packed-private --shard 64,64,64)
    (cd packed-private/waves && modes . c/0/0/0 c/0/0/1 c/0/1/0 zarr.json) >said
    [[ $(<said) == "755 . 644 c/0/0/0 640 c/0/0/1 644 c/0/1/0 600 zarr.json " ]]
}
check "copies have the permissions of what they are copied from, less the umask" has_permissions

keeps_permissions() {
    (umask 022 && "$sf" unpack sample.zarr locked)
    chmod 700 locked
    (umask 022 && "$sf" unpack --force sample.zarr locked)
    [[ $(modes locked locked/waves) == "700 locked 755 locked/waves " ]]
    mkdir -m 2750 locked-empty
    "$sf" unpack sample.zarr locked-empty
    [[ $(modes locked-empty) == "2750 locked-empty " ]]
    [[ $EUID == 0 ]] || return 0
    chown 54322:54322 locked
    setfacl -m u:54321:rx,g::- -d -m u:54321:rx locked
    getfacl -c locked >before
    "$sf" pack --force chunks.zarr locked --shard 64,64,64
    [[ $(stat -c %u:%g locked) == 54322:54322 ]]
    getfacl -c locked | cmp - before
}
check "--force and an empty destination: the directory keeps its owner and permissions" keeps_permissions
leaves_out_nodes() {
    cp -r sample.zarr half.zarr
    cp -r half.zarr/waves half.zarr/broken
    echo '{' >half.zarr/broken/zarr.json
    expect_exit 2 "$sf" unpack half.zarr half-chunks.zarr | grep >/dev/null 'broken/zarr.json: not valid JSON'
    expect_exit 1 "$sf" unpack --skip-damaged half.zarr half-chunks.zarr | grep >/dev/null 'broken/zarr.json: left out'
    [[ -e half-chunks.zarr/waves/c && ! -e half-chunks.zarr/broken ]]
}
check "a node that cannot be used is left out with all it has" leaves_out_nodes

keeps_every_layout() {
    local layout digest
    for layout in $(arrays layouts); do
        arrays make "layout-$layout.zarr" "$layout"
        digest=$(digest_of "$sf" unpack "layout-$layout.zarr" "files-$layout.zarr")
        if "$sf" repack "layout-$layout.zarr" "re-$layout.zarr" --order morton >out 2>&1; then
            arrays check "re-$layout.zarr"
            [[ $(digest_of "$sf" unpack "re-$layout.zarr" "again-$layout.zarr") == "$digest" ]] || {
                echo "$layout: another digest"
                return 1
            }
        else
            grep -q 'compressed as a whole' out || { echo "$layout"; cat out; return 1; }
        fi
    done
}
check "arrays of every layout keep their chunks" keeps_every_layout

# deep, deep/inner, deep/inner/third are arrays, and so is deep/group/fourth.
nest() {
    mkdir "$2"
    cp -r "$1" "$2/deep"
    cp -r "$1" "$2/deep/inner"
    cp -r "$1" "$2/deep/inner/third"
    mkdir "$2/deep/group"
    cp -r "$1" "$2/deep/group/fourth"
}
nested=(deep deep/group/fourth deep/inner deep/inner/third)
# documents DIR: where documents of arrays are
documents() { (cd "$1" && grep -rlE '"node_type": "array"' --include zarr.json . | sed 's|^./||; s|/zarr.json$||' | sort | paste -sd ' '); }
keeps_nested() {
    local node=$1 source=$2 chunks=$3 array
    "$sf" info "$source" --json | json '" ".join(a["path"] for a in d["arrays"])' | grep >/dev/null -x "${nested[*]}"
    "$sf" verify "$source" | grep >/dev/null '^4 arrays, '
    [[ $("$sf" ls "$source" | cut -f 1 | sed -E 's|/(c/)?[0-9]+/[0-9]+/[0-9]+$||' | uniq | paste -sd ' ') == "${nested[*]}" ]]
    "$sf" unpack "$source" "$source-chunks" >out
    [[ $(grep -c 'digest' out) == 4 && $(documents "$source-chunks") == "${nested[*]}" ]]
    "$sf" pack "$source-chunks" "$source-packed" --shard 64,64,64
    [[ $(documents "$source-packed") == "${nested[*]}" ]]
    "$sf" repack "$source-packed" "$source-re" --order f
    [[ $(documents "$source-re") == "${nested[*]}" ]]
    "$sf" repack "$source-re" | grep -c 'shards written anew' | grep >/dev/null -x 4
    "$sf" unpack "$source-re" "$source-again"
    same_files "$source-chunks" "$source-again"
    mount_view "$source-packed"
    same_files "$MP" "$source-chunks"
    unmount_view
    "$sf" refs "$source" -o "$source.json"
    for array in "${nested[@]}"; do
        [[ $(json 'd["refs"]["'"$array"'/zarr.json"]' <"$source.json") == *'"node_type": "array"'* ]]
        [[ $(grep -cF "\"$array/zarr.json\":" "$source.json") == 1 ]]
    done
    [[ $(json 'sum(isinstance(value, list) for value in d["refs"].values())' <"$source.json") == "$chunks" ]]
    echo "$node"
}
nest sample.zarr/waves nested3.zarr
echo '{"zarr_format": 3, "node_type": "group"}' | tee nested3.zarr/zarr.json >nested3.zarr/deep/group/zarr.json
check "arrays below arrays are nodes to every command" keeps_nested v3 nested3.zarr $((4 * 192))
as_zarr2() {
    mount_view sample.zarr --view zarr2
    nest "$MP/waves" nested2.zarr
    unmount_view
    echo '{"zarr_format": 2}' | tee nested2.zarr/.zgroup >nested2.zarr/deep/group/.zgroup
    # Readers of Zarr v2 see absent chunks as what they stand for: they were copied, too.
    keeps_nested v2 nested2.zarr $((4 * 224))
}
check "the same of Zarr v2" as_zarr2

# --- what is refused ---------------------------------------------------------------------------------

check "a destination that exists is refused" \
    fails_with 'it exists; --force replaces it' expect_exit 0 "$sf" unpack sample.zarr chunks.zarr
exists_code() { expect_exit 2 "$sf" unpack sample.zarr chunks.zarr; }
check "with exit code 2" exists_code
is_replaced() {
    echo litter >chunks.zarr/litter
    "$sf" unpack --force sample.zarr chunks.zarr
    [[ ! -e chunks.zarr/litter ]]
    same_files chunks.zarr again.zarr
}
check "--force replaces an array" is_replaced
is_begun_anew() {
    cp -r sample.zarr torn.zarr
    truncate -s 1000 torn.zarr/waves/c/0/0/1
    expect_exit 1 "$sf" unpack torn.zarr begun.zarr
    expect_exit 2 "$sf" unpack sample.zarr begun.zarr | grep >/dev/null 'unfinished result of another command, .shardfs unpack /.*/torn.zarr.,'
    "$sf" unpack --force sample.zarr begun.zarr
    same_files begun.zarr again.zarr
}
check "what another command has begun is left alone, or begun anew" is_begun_anew
is_not_replaced() {
    mkdir mine
    echo precious >mine/data
    expect_exit 2 "$sf" unpack --force sample.zarr mine | grep >/dev/null 'is no Zarr array or group'
    [[ $(<mine/data) == precious ]]
    echo precious >file
    expect_exit 2 "$sf" unpack --force sample.zarr file | grep >/dev/null 'is no Zarr array or group'
    [[ $(<file) == precious ]]
}
check "--force replaces nothing else" is_not_replaced
are_apart() {
    expect_exit 2 "$sf" unpack sample.zarr sample.zarr/waves/x | grep >/dev/null 'must not lie in each other'
    expect_exit 2 "$sf" unpack --force sample.zarr/waves sample.zarr | grep >/dev/null 'must not lie in each other'
    expect_exit 2 "$sf" unpack --force sample.zarr ./sample.zarr | grep >/dev/null 'must not lie in each other'
    arrays check sample.zarr
}
check "source and destination lie apart" are_apart
has_reasons() {
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard 64,64 | grep >/dev/null 'no array has 2 dimensions'
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard 60,60,60 | grep >/dev/null 'do not divide a shard of 60'
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard 64,a,64 | grep >/dev/null 'a number of elements for each'
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard x8,0 | grep >/dev/null 'such as x8,8'
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard x1,1,1,1 | grep >/dev/null 'no array has 4 dimensions'
    expect_exit 2 "$sf" pack chunks.zarr x.zarr --shard 0M | grep >/dev/null 'such as 256M'
    expect_exit 2 "$sf" repack chunks.zarr | grep >/dev/null 'no shards with an index'
    expect_exit 2 "$sf" repack sample.zarr --index start | grep >/dev/null '<DEST>'
    # The source that is the array is named once.
    expect_exit 2 "$sf" pack chunks.zarr/waves x.zarr --shard 60,60,60 | grep >/dev/null '^shardfs: chunks.zarr/waves: inner'
    expect_exit 2 "$sf" unpack nowhere.zarr x.zarr | grep >/dev/null 'No such file'
    [[ ! -e x.zarr ]]
}
check "what cannot be done is said, and nothing is made" has_reasons
waits_for_mounts() {
    python3 "$repo/tests/shell/shards.py" array waiting.zarr 7
    mount_view waiting.zarr --rw --commit-interval 3600
    printf 'new' >"$MP/c/0"
    "$sf" unpack waiting.zarr after.zarr
    [[ $(<after.zarr/c/0) == new ]]
    unmount_view
}
check "what waits in a mount of the source is committed first" waits_for_mounts

# Two shards whose chunks differ take each other's place all the time.
is_being_written() {
    python3 "$repo/tests/shell/shards.py" array live.zarr 7 --shards 1 --chunks 500
    python3 "$repo/tests/shell/shards.py" shard other.shard 9 --chunks 500 --gap 700
    cp live.zarr/c/0 this.shard
    (while [[ ! -e stop ]]; do
        # In place: what is being read changes under the reader.
        cat other.shard >live.zarr/c/0
        cat this.shard >live.zarr/c/0
    done) &
    local writer=$! refused=0 i rc
    for ((i = 0; i < 15; i++)); do
        rc=0
        rm -rf live-chunks.zarr
        "$sf" unpack live.zarr live-chunks.zarr >out 2>&1 || rc=$?
        if [[ $rc == 0 ]]; then
            [[ $(cat live-chunks.zarr/c/* | tr -d '\007\011' | wc -c) == 0 ]]
        else
            # The shard is found torn, cut off, or changed; and nothing is taken for an array.
            grep -Eq 'changed while it was being read|shard c/0|c/0: ' out || { cat out; break; }
            [[ ! -e live-chunks.zarr/zarr.json ]] || { cat out; break; }
            refused=$((refused + 1))
        fi
    done
    touch stop
    wait "$writer"
    ((i == 15 && refused > 0)) || { echo "$i rounds, $refused refused"; return 1; }
    "$sf" unpack --force live.zarr live-chunks.zarr
    [[ $(cat live-chunks.zarr/c/* | tr -d '\007' | wc -c) == 0 ]]
}
check "a source that others are writing is told, and never taken for complete" is_being_written

# --- damage ------------------------------------------------------------------------------------------

python3 "$repo/tests/shell/shards.py" array damaged.zarr 7
truncate -s -3 damaged.zarr/c/2
stays_unfinished() {
    expect_exit 1 "$sf" unpack damaged.zarr broken.zarr | tee out
    grep -q 'shard c/2: checksum of the index' out
    grep -q 'broken.zarr is not finished: the source is damaged; --skip-damaged leaves out' out
    [[ ! -e broken.zarr/zarr.json && -e broken.zarr/c/0 ]]
    expect_exit 1 "$sf" unpack --skip-damaged damaged.zarr broken.zarr | grep >/dev/null 'was left out'
    [[ -e broken.zarr/zarr.json && $(find broken.zarr/c -type f | wc -l) == 12 ]]
}
check "a copy that lacks chunks is not finished, unless they are skipped" stays_unfinished
is_told_by_every_command() {
    local command
    expect_exit 1 "$sf" unpack damaged.zarr part.zarr
    for command in info ls verify refs recover repack resize delete; do
        expect_exit 2 "$sf" "$command" part.zarr >out
        case $command in
        resize | delete) ;;
        *) grep -q '^shardfs: part.zarr: unfinished: .shardfs unpack /.*/damaged.zarr. has not' out ;;
        esac
    done
    new_mount_point
    expect_exit 32 "$sf" mount part.zarr "$MP" | grep >/dev/null 'part.zarr: unfinished'
    # Beside an array that is whole.
    mkdir with-part
    cp -r sample.zarr/waves part.zarr with-part
    for command in info ls verify refs repack; do
        expect_exit 1 "$sf" "$command" with-part >out
        grep -q 'part.zarr: unfinished: .shardfs unpack /.*/damaged.zarr.' out
    done
    expect_exit 1 "$sf" refs with-part -o part.json
    [[ ! -e part.json ]]
    expect_exit 2 "$sf" unpack with-part whole-part.zarr | grep >/dev/null 'part.zarr: unfinished'
    expect_exit 1 "$sf" verify --json with-part | grep >/dev/null '"code":"unfinished-copy"'
    # What only looks like one.
    rm part.zarr/.shardfs/job.json
    for command in info ls verify refs recover; do
        expect_exit 2 "$sf" "$command" part.zarr | grep >/dev/null 'part.zarr: .* there is no metadata in it'
    done
    mkdir other-work.zarr
    cp -r sample.zarr/. other-work.zarr
    mkdir other-work.zarr/.shardfs
    "$sf" verify other-work.zarr
    echo '{"command": "unpack", "source": "/x"}' >other-work.zarr/.shardfs/job.json
    "$sf" verify other-work.zarr
    "$sf" info other-work.zarr
}
check "every command says that its source is an unfinished copy" is_told_by_every_command
is_refused_in_place() {
    local before
    before=$(sum_of damaged.zarr)
    expect_exit 1 "$sf" repack damaged.zarr | tee out
    grep -q 'shard c/2: checksum of the index' out
    grep -q '^shardfs: shards that stay as they are, without a readable index: 1 (.shardfs recover --scan.' out
    # No chunk of it can be read.
    expect_exit 1 "$sf" repack --skip-damaged damaged.zarr | tee out
    grep -q '^shardfs: shards that stay as they are, without a readable index: 1 ' out
    [[ $(grep -c 'shards that lack\|skip-damaged\|left out' out) == 0 ]]
    [[ $(sum_of damaged.zarr) == "$before" ]]
}
check "a damaged shard is not repacked" is_refused_in_place
leaves_out_chunks() {
    python3 "$repo/tests/shell/shards.py" array entry.zarr 7
    PYTHONPATH=$repo/tests/shell python3 - entry.zarr/c/1 <<'PY'
import struct, sys
from shards import crc32c
data = bytearray(open(sys.argv[1], "rb").read())
index = bytearray(data[-68:-4])
struct.pack_into("<2Q", index, 16, 1 << 40, 9)
data[-68:] = index + struct.pack("<I", crc32c(index))
open(sys.argv[1], "wb").write(data)
PY
    expect_exit 1 "$sf" repack entry.zarr >out
    grep -q 'points outside the shard' out
    grep -q 'damaged shards that stay as they are: 1 (--skip-damaged ' out
    expect_exit 1 "$sf" repack entry.zarr --skip-damaged |
        grep >/dev/null '^shardfs: shards that lack the chunks now that cannot be read: 1$'
    expect_exit 0 "$sf" repack entry.zarr
    "$sf" unpack entry.zarr entry-chunks.zarr
    [[ $(find entry-chunks.zarr/c -type f | wc -l) == 15 && ! -e entry-chunks.zarr/c/5 ]]
}
check "chunks are left out of a shard when that is asked for" leaves_out_chunks

# --- dead space --------------------------------------------------------------------------------------

gives_space_back() {
    python3 "$repo/tests/shell/shards.py" array worn.zarr 7 --gap 100000
    local before after
    before=$(digest_of "$sf" unpack worn.zarr worn-chunks.zarr)
    "$sf" repack worn.zarr | grep >/dev/null '4 of 4 shards written anew'
    [[ $(stat -c %s worn.zarr/c/0) == $((4 * 4096 + 68)) && ! -e worn.zarr/.shardfs ]]
    after=$(digest_of "$sf" unpack worn.zarr worn-again.zarr)
    [[ $before == "$after" ]]
    "$sf" repack worn.zarr | grep >/dev/null '0 of 4 shards written anew'
    "$sf" repack worn.zarr --dedup | grep >/dev/null '4 of 4 shards written anew'
    # Sixteen equal chunks: four ranges.
    [[ $(stat -c %s worn.zarr/c/0) == $((4096 + 68)) ]]
    [[ $(digest_of "$sf" unpack worn.zarr worn-third.zarr) == "$before" ]]
    # What is shared stays shared.
    "$sf" repack worn.zarr | grep >/dev/null '0 of 4 shards written anew'
}
check "dead space is given back, equal chunks share their bytes" gives_space_back

works_under_a_mount() {
    python3 "$repo/tests/shell/shards.py" array busy.zarr 7 --gap 5000 --shards 8
    mount_view busy.zarr --rw --commit-interval 0.05
    local writer
    (for ((i = 0; i < 200; i++)); do printf '%4096d' $i >"$MP/c/$((i % 32))" && sleep 0.01; done) &
    writer=$!
    while kill -0 "$writer" 2>/dev/null; do
        "$sf" repack busy.zarr --order f >out 2>&1 || grep >/dev/null 'others keep changing it' out
    done
    wait "$writer"
    "$SHARDFS" sync "$MP"
    for ((i = 168; i < 200; i++)); do
        [[ $(tr -d ' ' <"$MP/c/$((i % 32))") == "$i" ]] || { echo "chunk $((i % 32)) is not $i"; return 1; }
    done
    unmount_view
    "$sf" repack busy.zarr
    arrays check busy.zarr
    [[ ! -e busy.zarr/.shardfs ]]
}
check "repacking under a mount that is written to loses nothing" works_under_a_mount

# --- a full stdout -----------------------------------------------------------------------------------

# full_stdout COMMAND...: what could not be printed is an error, which names stdout
full_stdout() {
    local rc=0
    "$sf" "$@" >/dev/full 2>err || rc=$?
    cat err
    [[ $rc == 2 ]]
    grep -qx 'shardfs: standard output: No space left on device (os error 28)' err
}
reports_cannot_be_printed() {
    full_stdout unpack --json sample.zarr unsaid.zarr
    same_files chunks.zarr unsaid.zarr
    full_stdout unpack sample.zarr unsaid-too.zarr
    same_files chunks.zarr unsaid-too.zarr
    cp -r sample.zarr unsaid-repack.zarr
    full_stdout repack --json unsaid-repack.zarr
    full_stdout repack unsaid-repack.zarr
    full_stdout refs sample.zarr -o unsaid.json
    [[ -s unsaid.json ]]
}
check "a report that stdout has no room for is an error, the copy is whole" reports_cannot_be_printed

# --- no space left -----------------------------------------------------------------------------------

is_full() {
    local small=$TMP/small
    mkdir "$small"
    mount -t tmpfs -o size=400k none "$small"
    trap 'umount "$small"' RETURN
    expect_exit 2 "$sf" unpack sample.zarr "$small/out.zarr" | tee out
    grep -q 'No space left on device' out
    grep -q 'the same command, without --force, continues from here' out
    [[ ! -e $small/out.zarr/zarr.json ]]
    mount -o remount,size=4m "$small"
    "$sf" unpack sample.zarr "$small/out.zarr" | grep >/dev/null 'of them there before'
    same_files chunks.zarr "$small/out.zarr"
}
if [[ $EUID == 0 ]]; then check "with no space left it can be gone on with" is_full; else skip "no space left: not root"; fi

every_command_knows_it() {
    local half=$TMP/unfinished.zarr command said
    mkdir -p "$half/.shardfs" "$half/c"
    cat >"$half/.shardfs/job.json" <<'JSON'
{"shardfs": "unfinished", "version": 1, "id": "0123456789abcdef0123456789abcdef",
 "what": {"command": "unpack", "source": "/data/whole.zarr"}}
JSON
    for command in info ls verify recover repack refs delete "delete --recursive" "resize --shape 1" \
        "create --shape 4 --dtype uint8" "create --force --shape 4 --dtype uint8" "create --sample"; do
        # shellcheck disable=SC2086 # several words
        said=$(expect_exit 2 "$SHARDFS" $command "$half")
        echo "$said"
        [[ $said == *"unfinished: \`shardfs unpack /data/whole.zarr\` has not completed it"* ]]
    done
    expect_exit 32 "$SHARDFS" mount "$half" "$TMP" | grep -F 'unfinished: '
    [[ -d $half/c && -e $half/.shardfs/job.json ]]
}
check 'every command says that a copy is unfinished' every_command_knows_it

# interrupted COMMAND...: its message, once it is interrupted in the middle.
interrupted() {
    env --default-signal "$SHARDFS" "$@" >/dev/null 2>"$TMP/interrupted" &
    local pid=$! rc=0
    # On a busy machine it begins later, and takes longer.
    sleep "0.$(printf %02d $((RANDOM % 12 + 2)))"
    kill -INT "$pid" 2>/dev/null || true
    wait "$pid" || rc=$?
    cat "$TMP/interrupted"
    # It may have been done, or not have begun to catch signals.
    [[ $rc != 130 || ! -s $TMP/interrupted ]] || grep -q "^shardfs: interrupted; .*same command" "$TMP/interrupted"
    [[ $rc == 130 && -s $TMP/interrupted ]]
}

resize_is_interrupted() {
    local many=$TMP/many i said=0
    "$SHARDFS" create "$many" --shape 200,100 --dtype uint8 --elements 1
    for ((i = 0; i < 200; i++)); do
        mkdir -p "$many/c/$i"
        (cd "$many/c/$i" && for ((k = 0; k < 100; k++)); do echo -n x >"$k"; done)
    done
    for ((i = 0; i < 40 && !said; i++)); do
        rm -rf "$TMP/less"
        cp -r "$many" "$TMP/less"
        ! interrupted resize "$TMP/less" --shape 10,10 || said=1
    done
    ((said))
    "$SHARDFS" resize "$TMP/less" --shape 10,10
    [[ $(find "$TMP/less/c" -type f | wc -l) == 100 ]]
}
check 'resize says what to do when it is interrupted' resize_is_interrupted
