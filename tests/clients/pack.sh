#!/bin/bash
# Unpacks, packs and repacks every array of the corpus: the encoded chunks stay what they are, and real
# libraries read the results.
#
#     tests/clients/pack.sh
#
# SHARDFS_CORPUS: where the corpus is.  The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if ! corpus=$(corpus_dir); then
    skip "no corpus: set SHARDFS_CORPUS"
    exit 0
fi
here=$repo/tests/clients
"$here/setup.sh"
python=${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python
export PYTHONDONTWRITEBYTECODE=1
out=$TMP/out
mkdir "$out"

judge '' python3 "$here/pack_check.py" make "$corpus" "$out" "$SHARDFS"
pids=()
for library in zarr-python tensorstore; do
    "$python" "$here/read_array.py" "$library" "$out/jobs" >"$out/$library.out" 2>"$out/$library.err" &
    pids+=($!)
done
wait "${pids[@]}"
judge '' python3 "$here/pack_check.py" compare "$corpus" "$out"
