#!/bin/bash
# shardfs verify over the corpus: no defect in any array of any writer, and every damaged case by its
# defect.
#
#     tests/shell/verify_corpus.sh [SUBSTRING]      only the cases whose name contains SUBSTRING
#
# SHARDFS_CORPUS: where the corpus is.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

only=${1:-}
if ! corpus=$(corpus_dir); then
    skip "no corpus: set SHARDFS_CORPUS"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1

# --- what must be found of each damaged case ---------------------------------------------------------

# In the array "bad", or in the source as a whole.
declare -A defect=(
    [bad_index_crc]='^shard bad/c/.*: checksum of the index is '
    [chunk_negative]='^bad/zarr.json: chunk_shape of the chunk grid must be '
    [chunk_zeroed]='^shard bad/c/.*, chunk at \[0, 1\]: it cannot be decoded: '
    [cke_separator]='^bad/zarr.json: separator of chunk_key_encoding must be '
    [codecs_empty]='^bad/zarr.json: codecs must be a non-empty list'
    [codecs_number]='^bad/zarr.json: codecs must be a list of names or objects'
    [codecs_unknown_outer]='^bad/zarr.json: codec "banana" after sharding_indexed is not known'
    [end_past_eof]='^shard bad/c/.*, chunk at \[0, 1\]: its entry .* points outside the shard'
    [entry_zeroed]='^shard bad/c/.*, chunk at \[1, 0\]: its entry (offset 0, nbytes 0) is of no bytes'
    [format_4]='^bad/zarr.json: zarr_format is 4'
    [grid_unknown]='^bad/zarr.json: chunk_grid must be regular or rectilinear'
    [index_claims_16_gib]='^bad/zarr.json: too many inner chunks in a shard'
    [index_codecs_disagree]='^shard bad/c/.*: an index of 4 chunks can be read at the end, little-endian, with a checksum: '
    [index_codecs_gzip]='^bad/zarr.json: index_codecs must be '
    [index_location_middle]='^bad/zarr.json: index_location must be '
    [inner_not_dividing]='^bad/zarr.json: inner chunks of 5 elements do not divide a shard of 6'
    [inner_rank]='^bad/zarr.json: chunk_shape of sharding_indexed has 3 entries'
    [inner_zero]='^bad/zarr.json: inner chunks of 0 elements do not divide'
    [json_array]='^bad/zarr.json: it is not a JSON object'
    [json_bad_utf8]='^bad/zarr.json: not valid JSON: '
    [json_comment]='^bad/zarr.json: not valid JSON: '
    [json_deep_attributes]='^bad/zarr.json: not valid JSON: recursion limit'
    [json_empty]='^bad/zarr.json: not valid JSON: EOF'
    [json_garbage]='^bad/zarr.json: not valid JSON: '
    [must_understand]='^bad/zarr.json: extension "banana" must be understood'
    [nbytes_2_62]='^shard bad/c/.*, chunk at .*: its entry .* points outside the shard'
    [nbytes_max_only]='^shard bad/c/.*, chunk at .*: its entry .* is half empty'
    [offset_2_63]='^shard bad/c/.*, chunk at .*: its entry .* points outside the shard'
    [overlapping]='^shard bad/c/.*, chunk at .*: its bytes .* overlap those of another'
    [root_garbage]='^zarr.json: not valid JSON: '
    [shape_10000_dims]='^bad/zarr.json: too many dimensions'
    [shape_2_63]='^bad/zarr.json: too many inner chunks'
    [shape_2_64]='^bad/zarr.json: shape must be a list of whole numbers'
    [shape_fraction]='^bad/zarr.json: shape must be a list of whole numbers'
    [shape_missing]='^bad/zarr.json: shape is missing'
    # Links are links, or what git makes of them where there are none.
    [shard_symlink_loop]='^shard bad/c/.*: \(it cannot be reached\|it has .* bytes\?, its index\)'
    [shard_symlink_outside]='^shard bad/c/.*: \(it cannot be reached\|it has .* bytes, its index\)'
    [storage_transformer]='^bad/zarr.json: extension "storage_transformers" must be understood'
    [stray_shard]='^shard bad/c/9/9: it lies outside the shard grid'
    [trailing_bytes]='^shard bad/c/.*: checksum of the index is '
    [transpose_bad_order]='^bad/zarr.json: order of transpose must be a permutation'
    [transpose_then_not_dividing]='^bad/zarr.json: inner chunks of 4 elements do not divide a shard of 6'
    [truncated_half]='^shard bad/c/.*: checksum of the index is '
    [zarr_json_directory]='^bad/zarr.json: it is a directory'
    [zero_length]='^shard bad/c/.*: it is empty, 0 bytes'
)
# Legal, and why.
declare -A legal=(
    [all_entries_empty]='zarrs writes shards of empty chunks'
    [codecs_unknown_inner]='chunks are shown as they are; that they cannot be decoded is a note'
    [directory_loop]='links to directories are not followed: nothing is visited twice'
    [fill_value_null]='chunks need no fill value'
    [index_codecs_missing]='read like zarr-python does: little-endian with a checksum, which is right'
    [json_bom]='a byte order mark changes nothing'
    [json_many_keys]='attributes may be many'
)
# Damaged files and directories of other formats.
declare -A other=(
    [bad_magic.blp]='^bad_magic.blp: it does not begin with "blpk"'
    [version_1.blp]='^version_1.blp: format version is 1'
    [checksum_9.blp]='^checksum_9.blp: checksum is 9'
    [nchunks_2_62.blp]='^nchunks_2_62.blp: nchunks is 4611686018427387904'
    [max_app_negative.blp]='^max_app_negative.blp: max-app-chunks is -1'
    [offset_into_header.blp]='chunk at \[1\]: its offset points into the header'
    [header_only.blp]='^header_only.blp: it has 20 bytes'
    [blosc_ctbytes_huge.blp]='chunk at \[0\]: it would end beyond the file'
    [blosc_nbytes_wrong.blp]='chunk at \[0\]: its Blosc header says that it holds more or fewer bytes'
    [bcolz_two_in_one]='^shard data/__1.blp: number of chunks is 2'
    [bcolz_chunklen_0]='^bcolz_chunklen_0: meta: chunklen must be a number above 0'
    [bcolz_dtype_code]='^bcolz_dtype_code: meta: dtype must be'
    [draft_offset_past_eof]='^shard data/root/a/c0/0, chunk at \[1, 1\]: its entry .* points outside'
    [draft_cps_zero]='^meta/root/a.array.json: chunks_per_shard must be'
    [draft_extension_unknown]='^meta/root/a.array.json: extension "https://example.org/x" must be understood'
)
# The format has a word for it: the chunk is found by the one before it.
declare -A other_legal=([offset_unknown.blp]='its writer has not finished it')

# --- checks --------------------------------------------------------------------------------------------

run_verify() {
    local rc=0
    timeout 60 "$SHARDFS" verify --decode "$@" >"$TMP/found" 2>"$TMP/stderr" || rc=$?
    [[ ! -s $TMP/stderr ]] || cat "$TMP/stderr"
    return "$rc"
}

sound() {
    run_verify "$@" || {
        cat "$TMP/found"
        return 1
    }
    ! grep -v '^note: ' "$TMP/found" | grep -v ' checked: '
}

# reported PATTERN ALLOWED STORE: exit 1, such a line, and no defect that is not of ALLOWED.
reported() {
    local pattern=$1 allowed=$2 rc=0
    run_verify "$3" || rc=$?
    cat "$TMP/found"
    [[ $rc == 1 ]]
    grep -q -- "$pattern" "$TMP/found"
    ! grep -v '^note: \| checked: ' "$TMP/found" | grep -v "$allowed"
}

prepared() {
    local name=$1
    python3 "$corpus/check_malformed.py" "$corpus/manifests-malformed/$name.json" --prepare "$corpus" "$TMP/$name"
    if [[ -n ${legal[$name]:-} ]]; then
        sound "$TMP/$name"
    else
        # The array "good" is.
        reported "${defect[$name]}" "^\\(shard \\)\\?\\(bad\\|$name\\|zarr.json\\)[/:]" "$TMP/$name"
    fi
}

# --- do it -------------------------------------------------------------------------------------------------

# Stores of formats that are read, and how many levels of sharding their arrays have.
python3 - "$corpus" "$only" >"$TMP/stores" <<'PY'
import glob
import json
import os
import sys

corpus, only = sys.argv[1:]
stores = {}
for path in sorted(glob.glob(os.path.join(corpus, "manifests", "*", "*.json"))):
    with open(path) as f:
        manifest = json.load(f)
    if manifest["kind"].startswith(("zarr2", "zarr3", "draft2022", "bloscpack", "bcolz")) and only in manifest["case"]:
        store = os.path.join(corpus, manifest["store"])
        stores[store] = max(stores.get(store, 1), max(level["level"] for level in manifest["levels"]))
for store, levels in stores.items():
    print(levels, store)
PY
while read -r levels store; do
    name=${store#"$corpus/data/"}
    check "$name" sound "$store"
    ((levels < 2)) || check "$name (level=1)" sound --level 1 "$store"
done <"$TMP/stores"

for manifest in "$corpus"/manifests-malformed/*.json; do
    name=$(basename "$manifest" .json)
    [[ malformed/$name == *"$only"* ]] || continue
    check "malformed/$name${legal[$name]:+: no defect, ${legal[$name]}}" prepared "$name"
done

for path in "$corpus"/data/malformed_other/*; do
    name=$(basename "$path")
    [[ $name != *.json && malformed_other/$name == *"$only"* ]] || continue
    if [[ -n ${other_legal[$name]:-} ]]; then
        check "malformed_other/$name: no defect, ${other_legal[$name]}" sound "$path"
    else
        check "malformed_other/$name" reported "${other[$name]}" "${other[$name]}" "$path"
    fi
done
