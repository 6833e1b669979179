# shellcheck shell=bash disable=SC2154 # variables of peer-suites
# zarr-python's tests, and xarray's of its Zarr backends: what the two make below pytest's directory for
# temporary files is in the mount.

zarr_version=3.1.6
xarray_version=2026.9.0
packages=("zarr==$zarr_version" "xarray==$xarray_version" numpy==2.4.6 numcodecs==0.16.6 dask==2026.8.0
    pandas==3.1.1 fsspec==2026.9.0 msgpack==1.2.4 pytest==9.2.0 pytest-asyncio==1.5.0 pytest-xdist==3.8.0
    pytest-timeout==2.4.0 pytest-benchmark==5.3.1 hypothesis==6.170.15 tomlkit==0.15.2 numpydoc==1.11.0)
venv=${SHARDFS_VENVS:-$top/target/venvs}/peers
sources=$top/target/peers

install_python_suites() {
    local lock
    # Others may do the same in this checkout.
    mkdir -p "${venv%/*}"
    exec {lock}>"$venv.lock"
    flock "$lock"
    install_locked_python_suites
    local ended=$?
    exec {lock}>&-
    return "$ended"
}

install_locked_python_suites() {
    if [[ ! -f $venv/stamp || $(<"$venv/stamp") != "${packages[*]}" ]]; then
        rm -rf "$venv"
        python3 -m venv "$venv" || return 1
        "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" || return 1
        echo "${packages[*]}" >"$venv/stamp"
    fi
    # Its tests are not in the package.
    if [[ ! -f $sources/zarr-$zarr_version/PKG-INFO ]]; then
        mkdir -p "$sources"
        "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$sources" \
            "zarr==$zarr_version" || return 1
        tar -C "$sources" -xzf "$sources/zarr-$zarr_version.tar.gz"
    fi
}

# pytest_in DIRECTORY REPORT OPTION...: all files below DIRECTORY.
pytest_in() {
    local directory=$1 report=$2
    shift 2
    rm -f "$report"
    mkdir -p "$directory/tmp"
    TMPDIR=$directory/tmp timeout --kill-after=10 "$limit" "$venv/bin/python" -m pytest -q -p no:cacheprovider \
        -n "$jobs" --timeout 300 --basetemp "$directory/base" --junitxml "$report" "$@" >"$report.log" 2>&1 || true
    [[ -f $report ]] || {
        echo "peer-suites: pytest in $directory ended without a report:" >&2
        tail -n 30 "$report.log" >&2
        return 1
    }
}

# run_pytest SUITE DIRECTORY OPTION...: started in DIRECTORY, plain and in a mount.
run_pytest() {
    local suite=$1 directory=$2
    shift 2
    new_source "$run/$suite-source"
    mkdir -p "$run/$suite-plain"
    (cd "$directory" && pytest_in "$run/$suite-plain" "$keep/$suite-plain.xml" "$@") || return 1
    mount_view "$run/$suite-source" ${shard:+--shard "$shard"} --log-file "$keep/$suite.log" || return 1
    (cd "$directory" && pytest_in "$mount/run" "$keep/$suite-mount.xml" "$@") || return 1
    unmount_view || return 1
    compare "$suite" "$keep/$suite-plain.xml" "$keep/$suite-mount.xml"
}

run_zarr() {
    install_python_suites || return 1
    if [[ -n $short ]]; then
        run_pytest zarr "$sources/zarr-$zarr_version" -k 'local or consolidated' tests/test_group.py \
            tests/test_store/test_local.py tests/test_metadata/test_consolidated.py tests/test_attributes.py
        return
    fi
    # The examples install packages; the benchmarks, the documentation and the command line have no files of
    # their own. The last one is named after addresses of functions, which differ between processes.
    run_pytest zarr "$sources/zarr-$zarr_version" --ignore=tests/benchmarks --ignore=tests/test_examples.py \
        --ignore=tests/test_docs.py --ignore=tests/test_cli \
        --deselect tests/test_api/test_synchronous.py::test_docstring_consistent_parameters tests
}

run_xarray() {
    local tests select='Zarr or zarr'
    [[ -z $short ]] || select='TestZarrDirectoryStore and (append or region or consolidated)'
    install_python_suites || return 1
    tests=$("$venv/bin/python" -c 'import xarray.tests; print(xarray.tests.__path__[0])')/test_backends.py
    run_pytest xarray "$run" -k "$select" -c /dev/null "$tests"
}
