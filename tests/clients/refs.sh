#!/bin/bash
# References: zarr-python 3 and 2 read what shardfs refs writes, through fsspec's reference filesystem; arrays of
# Zarr v2 of every kind, translated.  Then what is refused, and what the output is like.
#
#     tests/clients/refs.sh
#
# SHARDFS_CORPUS: where the corpus is; without one only what is made here is looked at.
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
venvs=${SHARDFS_VENVS:-$repo/target/venvs}
three() { "$venvs/refs/bin/python" "$here/refs_check.py" "$@"; }
two() { "$venvs/refs2/bin/python" "$here/refs_check.py" "$@"; }

# --- every array of the corpus ------------------------------------------------------------------------

if corpus=$(corpus_dir); then
    mkdir "$TMP/out"
    judge '' three corpus "$SHARDFS" "$corpus" "$TMP/out"
    judge '' two zarr2 "$TMP/out"
else
    skip "no corpus: set SHARDFS_CORPUS"
fi

# --- arrays of Zarr v2 --------------------------------------------------------------------------------

two make2 "$TMP/two"
judge '' three read2 "$SHARDFS" "$TMP/two"

# --- what the output is like --------------------------------------------------------------------------

sample=$TMP/sample.zarr
"$SHARDFS" create --sample "$sample"
refs() { "$SHARDFS" refs "$@"; }
# value FILE KEY: of version 0
value() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2]))' "$@"; }

is_written_to_stdout_and_to_files() {
    refs "$sample" >"$TMP/a.json"
    refs "$sample" -o "$TMP/b.json" | grep 'references to .* chunks in 1 array'
    cmp "$TMP/a.json" "$TMP/b.json"
    expect_exit 2 refs "$sample" -o "$TMP/b.json" | grep 'it exists; --force replaces it'
    refs "$sample" --prefix p/ -o "$TMP/b.json" --force
    grep -q '^"p/waves/c/0/0/0":' "$TMP/b.json"
    [[ -z $(find "$TMP" -name '.shardfs-refs-*') && $(stat -c %a "$TMP/b.json") == 644 ]]
}
check "references go to stdout or to a file that did not exist" is_written_to_stdout_and_to_files

says_where_shards_are() {
    refs "$sample" --json-version 0 >"$TMP/v0.json"
    [[ $(value "$TMP/v0.json" waves/c/0/0/0) == "['$sample/waves/c/0/0/0', 0, "* ]]
    refs "$sample" --json-version 0 --base-url s3://bucket/x.zarr/ >"$TMP/v0.json"
    [[ $(value "$TMP/v0.json" waves/c/0/0/0) == "['s3://bucket/x.zarr/waves/c/0/0/0', 0, "* ]]
    # What a server would take for something else.
    cp -r "$sample" "$TMP/odd?%.zarr"
    mkdir "$TMP/odd"
    mv "$TMP/odd?%.zarr" "$TMP/odd/"
    refs "$TMP/odd" --json-version 0 --base-url https://host/odd >"$TMP/v0.json"
    [[ $(value "$TMP/v0.json" 'odd?%.zarr/waves/c/0/0/0') == "['https://host/odd/odd%3F%25.zarr/waves"* ]]
}
check "references begin with the source's path or a URL" says_where_shards_are

braces_are_no_template() {
    cp -r "$sample" "$TMP/{{u}}.zarr"
    refs "$TMP/{{u}}.zarr" >"$TMP/braces.json"
    fails_with "" grep templates "$TMP/braces.json"
    refs "$sample" | grep -q '"templates":{"u":'
}
check "a path with braces is not taken for a template" braces_are_no_template

ends_quietly() {
    refs "$sample" 2>"$TMP/quiet" | head -n 1 >/dev/null
    [[ ! -s $TMP/quiet ]]
}
check "a reader that has enough is no error" ends_quietly

# --- damage -------------------------------------------------------------------------------------------

made() {
    "$venvs/refs/bin/python" - "$1" <<'PY'
import sys

import numpy as np
import zarr

array = zarr.create_array(sys.argv[1], shape=(16, 4), chunks=(2, 4), shards=(8, 4), dtype="<i4", compressors=None)
array[...] = np.arange(64).reshape(16, 4) + 1
PY
}
made "$TMP/bad.zarr"
truncate -s -1 "$TMP/bad.zarr/c/1/0"

damage_is_no_fill_value() {
    expect_exit 1 refs "$TMP/bad.zarr" -o "$TMP/bad.json" >"$TMP/said"
    grep 'shard c/1/0: ' "$TMP/said"
    grep 'problems: 1; nothing was written' "$TMP/said"
    [[ ! -e $TMP/bad.json ]]
    # What goes to stdout is no valid JSON.
    refs "$TMP/bad.zarr" >"$TMP/cut.json" 2>"$TMP/said" && return 1
    fails_with "" python3 -m json.tool "$TMP/cut.json"
    expect_exit 1 refs "$TMP/bad.zarr" -o "$TMP/bad.json" --skip-damaged >"$TMP/said"
    grep 'problems: 1; chunks that cannot be read are empty files' "$TMP/said"
    python3 -m json.tool "$TMP/bad.json" | grep -c '"c/[4-7]/0": ""' | grep -qx 4
}
check "what cannot be read is told, and an empty file if the rest is written" damage_is_no_fill_value
judge '' three damaged "$TMP/bad.json"

nodes_are_left_out() {
    mkdir -p "$TMP/nodes/bad"
    cp -r "$sample" "$TMP/nodes/good.zarr"
    echo '{"zarr_format": 3, "node_type": "array"}' >"$TMP/nodes/bad/zarr.json"
    expect_exit 1 refs "$TMP/nodes" | grep 'bad/zarr.json: codecs must be a non-empty list'
    expect_exit 1 refs "$TMP/nodes" --skip-damaged -o "$TMP/nodes.json"
    fails_with "" grep '"bad/' "$TMP/nodes.json"
    grep -q '"good.zarr/waves/zarr.json"' "$TMP/nodes.json"
    mkdir "$TMP/none"
    expect_exit 2 refs "$TMP/none" | grep 'there is no metadata in it'
}
check "nodes that cannot be used are told" nodes_are_left_out
