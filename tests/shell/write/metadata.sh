#!/bin/bash
# zarr.json of a sharded array is written: which members may change, and how an array grows and shrinks.

# shellcheck disable=SC2012 source=lib.sh
. "$(dirname "$0")/lib.sh"

make_arrays dot

# edit HOW SNIPPET: changes the document "m" of the mounted array as writers do
edit() {
    python3 - "$MP/${3:-}zarr.json" "$1" "$2" <<'PY'
import json
import os
import sys

path, how, snippet = sys.argv[1:]
with open(path) as f:
    m = json.load(f)
exec(snippet)
text = json.dumps(m, indent=2)
if how == "in-place":
    with open(path, "w") as f:
        f.write(text)
elif how == "keeping":
    # Longer than what is there, or filled up: without truncation.
    with open(path, "r+") as f:
        f.write(text)
        f.truncate()
else:
    with open(path + ".partial", "w") as f:
        f.write(text)
    try:
        os.rename(path + ".partial", path)
    except OSError:
        os.unlink(path + ".partial")
        raise
PY
}

# document FILE EXPRESSION: a value in it
document() { python3 -c 'import json, sys; m = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"; }

attributes_changed() {
    fresh $plane
    cp "$source/zarr.json" "$work/before.json"
    edit "$1" 'm["attributes"] = {"unit": "nm", "long": "x" * 5000, "number": -0.0}'
    [[ $(document "$MP/zarr.json" 'm["attributes"]["unit"]') == nm ]]
    [[ $(document "$source/zarr.json" 'm["attributes"]["unit"]') == nm ]]
    edit "$1" 'm["dimension_names"] = ["y", None]; m["attributes"] = {}'
    [[ $(document "$source/zarr.json" 'm["dimension_names"]') == "['y', None]" ]]
    [[ $(document "$source/zarr.json" 'm["attributes"]') == "{}" ]]
    # Everything else is as it was: it is a sharded array.
    [[ $(document "$source/zarr.json" 'm["codecs"], m["chunk_grid"]') == \
        "$(document "$work/before.json" 'm["codecs"], m["chunk_grid"]')" ]]
    [[ $(document "$MP/zarr.json" '"sharding" in str(m)') == False ]]
    edit "$1" 'del m["dimension_names"]'
    [[ $(document "$source/zarr.json" '"dimension_names" in m') == False ]]
    both cp "$data/page" "${present[0]}"
    [[ $(find "$source" -name 'zarr.json?*') == "" ]]
    settled
}
for how in in-place keeping renamed; do
    at_once "attributes and dimension names change, zarr.json written $how" attributes_changed $how
done

grown() {
    fresh $plane
    fails_with "Invalid argument" mkdir "$MP/c/6"
    edit renamed 'm["shape"] = [28, 60]'
    [[ $(document "$source/zarr.json" 'm["shape"]') == "[28, 60]" ]]
    both mkdir -p c/6
    both cp "$data/page" c/6/2
    both cp "$data/page" c/0/14
    both cp "$data/page" "${present[0]}"
    settled
}
at_once "an array grows: its new chunks can be written" grown

shrunk() {
    fresh $plane
    # Written, not committed, and outside the shape a moment later.
    both cp "$data/page" c/4/10
    both cp "$data/page" c/0/0
    edit "$1" 'm["shape"] = [11, 20]'
    (cd "$want" && rm -rf c/3 c/4 c/*/{5..10})
    same_files "$MP"
    fails_with "Invalid argument" mkdir "$MP/c/3"
    fails_with "Invalid argument" touch "$MP/c/0/5"
    sync "$MP"
    in_shards --mounted
    # And is not there when the array grows again.
    edit "$1" 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "an array shrinks: chunks outside are removed" shrunk renamed

shrunk_and_removed() {
    fresh_group
    edit renamed 'm["shape"] = [s // 3 for s in m["shape"]]' waves/
    sync "$MP"
    rm -r "$MP/waves"
    [[ $(ls -A "$source") == zarr.json ]]
}
at_once "an array that has shrunk is removed: nothing is left of it" shrunk_and_removed

shrunk_flat() {
    fresh dot
    edit renamed 'm["shape"] = [11, 20]'
    (cd "$want" && rm -f c.3.* c.4.* c.*.{5..10})
    same_files "$MP"
    sync "$MP"
    in_shards --mounted
    edit renamed 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "an array shrinks, all chunks in one directory" shrunk_flat
at_once "an array shrinks, zarr.json written in place" shrunk in-place

shrunk_keeping() {
    fresh $plane -o keep_outside
    edit renamed 'm["shape"] = [11, 20]'
    [[ $(find "$MP/c" -type f | wc -l) == "$(cd "$want" && find c/[0-2]/[0-4] -type f | wc -l)" ]]
    # A commit of such a shard keeps them too.
    both cp "$data/page" c/0/0
    both cp "$data/page" c/2/4
    sync "$MP"
    rm -rf "$work/extracted"
    python3 "$here/arrays.py" extract "$source" "$work/extracted" --mounted --outside
    same_files "$work/extracted"
    edit renamed 'm["shape"] = [20, 44]'
    sleep 1.1
    settled
}
at_once "-o keep_outside: an array shrinks and grows, nothing is lost" shrunk_keeping

refused() {
    local before
    fresh $plane
    for snippet in \
        'm["codecs"].append({"name": "gzip", "configuration": {"level": 1}})' \
        'm["codecs"] = [{"name": "bytes", "configuration": {"endian": "big"}}]' \
        'm["data_type"] = "int8"' \
        'm["chunk_grid"]["configuration"]["chunk_shape"] = [8, 4]' \
        'm["chunk_key_encoding"] = {"name": "v2"}' \
        'm["fill_value"] = 7' \
        'm["shape"] = [20]' \
        'm["zarr_format"] = 2' \
        'm = {"zarr_format": 3, "node_type": "group", "attributes": {}}' \
        'm["something"] = "unknown"'; do
        before=$(cat "$MP/zarr.json")
        : >"$log"
        fails_with "Invalid argument" edit "$1" "$snippet"
        # Source and view still have the old document.
        cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
        [[ $(cat "$MP/zarr.json") == "$before" ]]
        grep -q 'zarr.json' "$log"
    done
    both cp "$data/page" "${present[0]}"
    settled
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
}
for how in in-place keeping renamed; do
    at_once "codecs, data type, grid, fill value, keys may not change, zarr.json written $how" refused $how
done

not_json() {
    fresh $plane
    fails_with "Invalid argument" cp "$data/text" "$MP/zarr.json"
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
    python3 -m json.tool "$MP/zarr.json" >/dev/null
    settled
    cmp "$source/zarr.json" "$TMP/made/$plane/zarr.json"
}
at_once "what is no JSON is refused, and not shown" not_json

finish
