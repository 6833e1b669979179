#!/bin/bash
# The libraries that read arrays in run.sh, in the versions the corpus was checked with.  Does nothing
# when they are there already.
#
#     tests/clients/setup.sh
#
# SHARDFS_VENVS  where the Python environment goes (default target/venvs)
# SHARDFS_NODE   where the node modules go (default target/node)

set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
venvs=${SHARDFS_VENVS:-$repo/target/venvs}
node=${SHARDFS_NODE:-$repo/target/node}

python_packages=(zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6 tensorstore==0.1.86 zarrs==0.2.3)
# The last release but two that had the storage transformer of the draft of 2022.  It imports its own tests.
draft_packages=(zarr==2.16.1 numcodecs==0.12.1 numpy==1.24.4 pytest==8.4.2)
# Data sets of webknossos-wrap.
wkw_packages=(wkw==1.1.24 numpy==1.26.4)
# Frames of Blosc2.
blosc2_packages=(blosc2==4.14.1 numpy==2.4.6)
bloscpack_packages=(bloscpack==0.16.0 blosc==1.11.4 numpy==1.23.5)
# Readers that know no sharding.  netCDF4 brings its own netCDF-C, with filters; Debian's has none.
views_packages=(zarr==2.18.7 numcodecs==0.15.2 crc32c==2.9.post0 numpy==2.4.6 xarray==2025.3.1 pandas==3.1.1
    fsspec==2026.9.0 netCDF4==1.7.5.1.post1 SimpleITK==2.5.7 pynrrd==1.1.3)
# References of shardfs refs: fsspec, zarr-python 3 and 2; xarray.
refs_packages=(zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6 tensorstore==0.1.86 fsspec==2026.9.0
    xarray==2026.9.0 pandas==3.1.1 kerchunk==0.2.10)
refs2_packages=(zarr==2.18.7 numcodecs==0.15.2 crc32c==2.9.post0 numpy==2.4.6 fsspec==2026.9.0)
# Object stores, and what reads arrays there.
s3_packages=(boto3==1.44.8 azure-storage-blob==12.31.1 obstore==0.12.1 zarr==3.1.6 numpy==2.4.6
    tensorstore==0.1.86 numcodecs==0.16.6)
# Parallel writers.
dask_packages=(zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6 dask==2026.8.0)
# Writers of hierarchies.
writers_packages=(zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6 ome-zarr==0.18.0 ngff-zarr==0.50.0 anndata==0.12.19
    dask==2026.8.0 zarrs==0.2.3 tensorstore==0.1.86 pandas==2.3.3 scipy==1.17.1 rasterio==1.4.4)
# A parser of OpenMetrics.
metrics_packages=(prometheus-client==0.26.0)
# A validator of JSON Schema.
schemas_packages=(jsonschema==4.26.0)
# The Python module: its tests, and what its recipes read and write with.
module_packages=(pytest==8.4.2 mypy==2.4.1 zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6 xarray==2026.9.0 pandas==3.1.1
    fsspec==2026.9.0 dask==2026.8.0 SimpleITK==2.5.7)
node_packages=(zarrita@0.7.5 @zarrita/storage@0.2.0 numcodecs@0.3.2)
# An emulator of Azure Blob Storage.
azurite_packages=(azurite@3.35.0)

# --- Debian packages -------------------------------------------------------------------------------

missing=()
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
if ((${#missing[@]})); then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y "${missing[@]}" >/dev/null
    else
        echo "missing Debian packages: ${missing[*]}" >&2
        exit 1
    fi
fi

# --- libraries -------------------------------------------------------------------------------------

# Several test suites may share them.
mkdir -p "$venvs"
exec {lock}>"$venvs/lock"
flock "$lock"

# A stamp with the versions in it is written last, so an interrupted or older setup is done again.
up_to_date() { [[ -f $1 && $(<"$1") == "$2" ]]; }

python_environment() {
    local name=$1
    shift
    if ! up_to_date "$venvs/$name/stamp" "$*"; then
        rm -rf "${venvs:?}/$name"
        python3 -m venv "$venvs/$name"
        "$venvs/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
        echo "$*" >"$venvs/$name/stamp"
    fi
}
python_environment clients "${python_packages[@]}"
python_environment draft2022 "${draft_packages[@]}"
python_environment wkw "${wkw_packages[@]}"
python_environment blosc2 "${blosc2_packages[@]}"
python_environment bloscpack "${bloscpack_packages[@]}"
python_environment views "${views_packages[@]}"
python_environment refs "${refs_packages[@]}"
python_environment refs2 "${refs2_packages[@]}"
python_environment dask "${dask_packages[@]}"
python_environment s3 "${s3_packages[@]}"
python_environment writers "${writers_packages[@]}"
python_environment metrics "${metrics_packages[@]}"
python_environment schemas "${schemas_packages[@]}"
python_environment module "${module_packages[@]}"

node_modules() {
    local dir=$1
    shift
    if ! up_to_date "$dir/stamp" "$*"; then
        mkdir -p "$dir"
        echo '{"private": true, "type": "module"}' >"$dir/package.json"
        (cd "$dir" && npm install --silent --no-audit --no-fund --save-exact "$@" >/dev/null)
        echo "$*" >"$dir/stamp"
    fi
}
node_modules "$node" "${node_packages[@]}"
node_modules "$node/azurite" "${azurite_packages[@]}"
