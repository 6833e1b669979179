#!/bin/bash
# Runs the recipes of docs/RECIPES.md and compares what they print with what is written there. Those of programs that are
# not installed are left out.
#
#     tests/clients/recipes.sh
#
# The Python libraries come from setup.sh.

set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
"$repo/tests/clients/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
PATH=${SHARDFS_VENVS:-$repo/target/venvs}/module/bin:$PATH exec "$repo/tests/semantics.sh" docs/RECIPES.md
