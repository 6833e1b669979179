#!/bin/bash
# Files that are passed through, beside the same in an ordinary directory: whoever has one open goes on with
# it, whatever becomes of its name.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
export PYTHONDONTWRITEBYTECODE=1

group() {
    mkdir -p "$1"
    echo '{"zarr_format": 3, "node_type": "group"}' >"$1/zarr.json"
}

group "$TMP/ordinary"
judge "in an ordinary directory: " python3 "$here/open_files.py" "$TMP/ordinary" "$TMP/ordinary"
group "$TMP/written"
mount_view "$TMP/written" --rw
judge "in a writable mount: " python3 "$here/open_files.py" "$MP" "$TMP/written"
group "$TMP/read"
mount_view "$TMP/read"
judge "in a read-only mount: " python3 "$here/open_files.py" "$MP" "$TMP/read"
