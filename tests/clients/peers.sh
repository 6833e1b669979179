#!/bin/bash
# Tests of zarr-python and xarray themselves, a selection, with their files in a mount that stores new arrays sharded: what
# passes in a plain directory passes there. All of them: scripts/peer-suites.
#
#     tests/clients/peers.sh
#
# It installs what it needs below target/.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

for suite in zarr xarray; do
    check "$suite's own tests" "$repo/scripts/peer-suites" --short --shard 256 --keep "$TMP/$suite" "$suite"
done
