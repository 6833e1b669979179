#!/bin/bash
# What xarray reads through views, references and copies is what it reads of the source: every dataset is compared
# whole. Then what it writes through a view, and what netCDF4 reads of the numbers.
#
#     tests/clients/xarray.sh
#
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
venvs=${SHARDFS_VENVS:-$repo/target/venvs}
three() { "$venvs/refs/bin/python" "$here/xarray_check.py" "$@"; }
two() { "$venvs/views/bin/python" "$here/xarray_check.py" "$@"; }

made=$TMP/made
mkdir "$made" "$TMP/refs" "$TMP/copies" "$TMP/jobs"
three write "$made"

# job READER LABEL STORE NAME: READER reads STORE, which is what was made of the store of that name.
job() { printf '%s\t%s\t%s\n' "$2" "$3" "$made/$4.zarr.pickle" >>"$TMP/jobs/$1"; }

# done_with COMMAND [OPTION...]: the output is looked at where it fails alone.
quietly() { "$@" >"$TMP/said" 2>&1 || fail "$* $(tail -n 3 "$TMP/said")"; }

# views STORE NAME: a mount of both forms.
views() {
    local store=$1 name=$2
    mount_view "$store" --view zarr3,zarr2 --log-file "$TMP/log"
    job three "$name, view zarr3" "$MP/zarr3" "$name"
    job three "$name, view zarr2" "$MP/zarr2" "$name"
    job two "$name, view zarr2" "$MP/zarr2" "$name"
}

# references STORE NAME
references() {
    local store=$1 name=$2 label=$3
    quietly "$SHARDFS" refs "$store" -o "$TMP/refs/$label.json"
    job three "$label, refs" "$TMP/refs/$label.json" "$name"
    quietly "$SHARDFS" refs "$store" --zarr2 -o "$TMP/refs/$label-zarr2.json"
    job three "$label, refs --zarr2" "$TMP/refs/$label-zarr2.json" "$name"
    job two "$label, refs --zarr2" "$TMP/refs/$label-zarr2.json" "$name"
}

for name in v3-plain v3-consolidated v3-sharded v3-zeros; do
    views "$made/$name.zarr" "$name"
    references "$made/$name.zarr" "$name" "$name"
    quietly "$SHARDFS" unpack "$made/$name.zarr" "$TMP/copies/$name.zarr"
    job three "$name, unpack" "$TMP/copies/$name.zarr" "$name"
done
job two v2-consolidated "$made/v2-consolidated.zarr" v2-consolidated
views "$made/v3-numbers.zarr" v3-numbers
job netcdf "v3-numbers, view zarr2" "$MP/zarr2" v3-numbers
for name in v2-plain v2-consolidated; do
    references "$made/$name.zarr" "$name" "$name"
    copy=$TMP/copies/$name.zarr
    quietly "$SHARDFS" pack "$made/$name.zarr" "$copy" --shard 4,3,8
    job three "$name, pack" "$copy" "$name"
    views "$copy" "$name"
    references "$copy" "$name" "$name-packed"
    quietly "$SHARDFS" unpack "$copy" "$TMP/copies/$name-unpacked.zarr"
    job three "$name, pack and unpack" "$TMP/copies/$name-unpacked.zarr" "$name"
    quietly "$SHARDFS" unpack "$made/$name.zarr" "$TMP/copies/$name-chunks.zarr"
    job three "$name, unpack" "$TMP/copies/$name-chunks.zarr" "$name"
done
judge '' three read "$TMP/jobs/three"
judge '' two read "$TMP/jobs/two"
judge '' two netcdf "$TMP/jobs/netcdf"

copies_are_consolidated_as_the_source_is() {
    fails_with "" grep consolidated_metadata "$TMP/copies/v2-plain.zarr/zarr.json"
    "$venvs/refs/bin/python" - "$TMP/copies/v2-consolidated.zarr" "$made/v2-consolidated.zarr" <<'PY'
import sys

import zarr

copy, source = (zarr.open_consolidated(path) for path in sys.argv[1:])
nodes = lambda group: sorted(group.metadata.consolidated_metadata.metadata)
assert nodes(copy) == nodes(source), (nodes(copy), nodes(source))
PY
}
check "a copy of consolidated Zarr v2 is consolidated" copies_are_consolidated_as_the_source_is

# --- writing ------------------------------------------------------------------------------------------

written() {
    local label=$1 reader=$2 source=$TMP/written-$2-$3.zarr
    cp -r "$made/$3.zarr" "$source"
    mount_view "$source" --rw --view zarr2
    judge "$label: " "$reader" append "$MP" "$TMP/$2.pickle"
    unmount_view || fail "unmount $label"
    printf '%s\t%s\t%s\n' "$label, source" "$source" "$TMP/$2.pickle" >"$TMP/jobs/written"
    judge '' three read "$TMP/jobs/written"
    judge "$label: " three kept "$made/$3.zarr" "$source"
}
written "zarr-python 3 through zarr2" three v3-plain
written "zarr-python 2 through zarr2" two v3-plain
written "zarr-python 3 through zarr2, consolidated" three v3-consolidated
written "zarr-python 2 through zarr2, consolidated" two v3-consolidated
