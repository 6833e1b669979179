#!/bin/bash
# Mounts every Zarr store of the corpus and compares what is shown, file by file, with the manifests;
# then every damaged store, and stores with offsets beyond 2^40.
#
#     tests/corpus.sh [SUBSTRING]      only the cases whose name contains SUBSTRING
#
# SHARDFS_CORPUS: where the corpus is.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

only=${1:-}
if ! corpus=$(corpus_dir); then
    skip "no corpus: set SHARDFS_CORPUS"
    exit 0
fi
# shellcheck source=corpus_lib.sh
. "$repo/tests/corpus_lib.sh"

# All ways to mount one store: STORE MANIFEST...
check_all_options() {
    local store=$1
    shift
    check_store "$store" default -1 "" "$@"
    check_store "$store" immutable -1 "-o immutable" "$@"
    check_store "$store" level=1 1 "-o level=1" "$@"
}

# --- what there is to do ---------------------------------------------------------------------------

# Sparse files of 1 TiB: not every filesystem takes them.
if ! python3 "$corpus/generate/gen_big_sparse.py" "$TMP/big" 2>"$TMP/big.err"; then
    skip "offsets beyond 2^40: $(tail -n 1 "$TMP/big.err")"
    rm -rf "$TMP/big"
fi

# One line per store: "store <path> <manifest>...", or "damaged <manifest>".
for root in "$corpus" "$TMP/big"; do
    corpus_stores "$root" zarr3,draft2022,bloscpack,bcolz,b2nd,wkw "$only" | sed "s|^|store $root/|"
done >"$TMP/work"
for manifest in "$corpus"/manifests-malformed/*.json; do
    [[ malformed/$(basename "$manifest") != *"$only"* ]] || echo "damaged $manifest"
done >>"$TMP/work"

# --- do it -------------------------------------------------------------------------------------------

job() {
    local kind=$1 store
    shift
    if [[ $kind == store ]]; then
        check_all_options "$@"
    else
        store=$TMP/damaged/$(basename "$1" .json)
        prepare_damaged "$1" "$store"
        check_damaged "$1" "$store"
    fi
}
in_jobs "$TMP/work" job

other=$corpus/data/malformed_other
[[ draft2022 != *$only* ]] || check_damaged_drafts "$other"

if [[ bloscpack == *$only* ]]; then
    check_damaged_foreign "$other/bad_magic.blp" refused 'it does not begin with "blpk"'
    check_damaged_foreign "$other/version_1.blp" refused 'format version is 1'
    check_damaged_foreign "$other/checksum_9.blp" refused 'checksum is 9'
    check_damaged_foreign "$other/nchunks_2_62.blp" refused 'nchunks is 4611686018427387904'
    check_damaged_foreign "$other/max_app_negative.blp" refused 'max-app-chunks is -1'
    check_damaged_foreign "$other/header_only.blp" refused 'it has 20 bytes'
    check_damaged_foreign "$other/offset_unknown.blp" '0 of 5' 'its writer has not finished it'
    check_damaged_foreign "$other/offset_into_header.blp" '1 of 5' 'points into the header'
    check_damaged_foreign "$other/blosc_ctbytes_huge.blp" '1 of 5' 'would end beyond the file'
    check_damaged_foreign "$other/blosc_nbytes_wrong.blp" '1 of 5' 'more or fewer bytes than a chunk'
    check_damaged_bcolz "$other"
fi
