#!/bin/bash
# The Python module runs the program as its documentation says: types, functions, mounts and their ends, and the
# recipes of docs/PYTHON.md.
#
#     tests/clients/python.sh
#
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$repo/python SHARDFS
# Others bring plugins, which take longer to load than most tests.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
# Temporary mountpoints are made there. What is mounted below $TMP at the end is unmounted.
mkdir "$TMP/temporary"
export TMPDIR=$TMP/temporary
python() { timeout 120 "${SHARDFS_VENVS:-$repo/target/venvs}/module/bin/python" "$@"; }

typed() {
    cd "$repo/python"
    python -m mypy --strict --cache-dir "$TMP/mypy" shardfs tests
}
check "the module has types, and its tests are right by them" typed

# passes NAME: the tests in a file of python/tests.
passes() {
    cd "$repo/python"
    # What failed comes last.
    python -m pytest -q --tb=short -p no:cacheprovider --basetemp "$TMP/$1" "tests/test_$1.py"
}
check "the program is found, gets any name as it is, and its failures are exceptions" passes program
check "the commands return what the program prints, as the schemas describe it" passes commands
check "lists come while the program runs, which ends with them or when it is interrupted" passes lines
check "mounts end with all that was written, and leave nothing; what keeps them from it is an exception" passes mount
check "zarr-python, xarray, fsspec and mappings read what a mount shows, without one" passes open
check "the recipes of the documentation print what is written there" passes page

nothing_is_mounted() {
    fails_with '' grep -F " $TMP/" /proc/self/mounts
    [[ -z $(ls -A "$TMPDIR") ]]
}
check "no mount and no mountpoint is left" nothing_is_mounted
