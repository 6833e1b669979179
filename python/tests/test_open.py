"""Sources that are read without a mount: by mappings, fsspec, zarr-python and xarray."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray
import zarr

import shardfs

CHUNK = "waves/c/0/0/0"


def test_a_mapping_is_what_a_mount_shows(sample: Path) -> None:
    mapper = shardfs.open(sample).mapper
    with shardfs.mount(sample) as path:
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert dict(mapper) == files and len(mapper) == 194
    assert CHUNK in mapper and "waves/c/0/0/6" not in mapper
    with pytest.raises(KeyError):
        mapper["waves/c/0/0/6"]
    for change in (lambda: mapper.__setitem__(CHUNK, b""), lambda: mapper.__delitem__(CHUNK), mapper.clear):
        with pytest.raises(TypeError, match="read-only"):
            change()


def test_chunks_of_a_shard_that_has_changed_are_errors_and_no_absence(sample: Path) -> None:
    mapper = shardfs.open(sample).mapper
    os.truncate(sample / CHUNK, 1000)
    with pytest.raises(OSError, match="it has changed") as caught:
        mapper[CHUNK]
    assert caught.value.errno == errno.ESTALE
    os.remove(sample / CHUNK)
    with pytest.raises(FileNotFoundError):
        mapper[CHUNK]


def test_damage_is_refused_or_kept_apart(sample: Path) -> None:
    os.truncate(sample / CHUNK, 1000)
    with pytest.raises(shardfs.DamageError, match="shard waves/c/0/0/0: it has 1000 bytes"):
        shardfs.open(sample)
    source = shardfs.open(sample, skip_damaged=True)
    assert source.mapper[CHUNK] == b""
    array = zarr.open_array(source.store(), path="waves", mode="r")
    assert array[63, 111, 119] is not None
    with pytest.raises(ValueError):
        array[0, 0, 0]


def test_chunks_may_be_kept_in_memory(sample: Path) -> None:
    source = shardfs.open(sample, inline="1G")
    content = shardfs.open(sample).mapper[CHUNK]
    os.remove(sample / CHUNK)
    assert source.mapper[CHUNK] == content and source.fs.cat_file(CHUNK) == content


def test_zarr_reads_the_same(sample: Path) -> None:
    source = shardfs.open(sample)
    array = zarr.open_group(source.store(), mode="r")["waves"]
    assert isinstance(array, zarr.Array) and array.chunks == (16, 16, 16) and array.shards is None
    values = zarr.open_array(sample / "waves", mode="r")[:]
    assert np.array_equal(array[:], values)
    with pytest.raises(ValueError, match="read-only|read only"):
        array[0, 0, 0] = 1
    again = pickle.loads(pickle.dumps(source.store()))
    assert np.array_equal(zarr.open_array(again, path="waves", mode="r")[:], values)


def test_xarray_reads_the_same(sample: Path) -> None:
    dataset = xarray.open_zarr(shardfs.open(sample).store(), consolidated=False)
    assert dataset.waves.dims == ("z", "y", "x") and dataset.attrs == {"title": "shardfs sample"}
    assert dataset.waves[10, 20, 30:38].values.tolist() == [455, 457, 460, 463, 465, 468, 471, 474]


def test_a_filesystem(sample: Path) -> None:
    source = shardfs.open(sample / "waves", zarr2=True)
    assert source.fs.cat_file(".zarray").startswith(b"{")
    assert sorted(Path(name).name for name in source.fs.ls("0/0", detail=False)) == list("01234567")
    assert source.fs is source.fs and source.mapper is source.mapper


def test_a_source_that_is_read_elsewhere(sample: Path) -> None:
    elsewhere = fsspec.filesystem("memory")
    elsewhere.put(str(sample), "/there", recursive=True)
    try:
        source = shardfs.open(sample, base_url="memory://there")
        content = shardfs.open(sample).mapper[CHUNK]
        os.remove(sample / CHUNK)
        assert source.mapper[CHUNK] == content
        assert zarr.open_array(source.store(), path="waves", mode="r")[10, 20, 30] == 455
        elsewhere.pipe_file("/there/waves/c/0/0/0", b"short")
        with pytest.raises(OSError, match="it has changed"):
            source.mapper[CHUNK]
    finally:
        elsewhere.rm("/there", recursive=True)


def test_a_name_is_kept_once(sample: Path) -> None:
    references = shardfs.open(sample).references
    assert len({id(it[0]) for it in references.values() if isinstance(it, list)}) == 4


WITHOUT = """
import sys
for name in ("fsspec", "zarr", "numpy"):
    sys.modules[name] = None
import shardfs
source = shardfs.open(sys.argv[1])
print(len(source.mapper["waves/c/0/0/0"]))
for get in (lambda: source.fs, source.store):
    try:
        get()
    except ImportError as error:
        print(error)
"""


def test_it_needs_nothing_else_for_a_mapping(sample: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, sample], stdout=subprocess.PIPE, text=True, check=True)
    length, fs, store = done.stdout.splitlines()
    assert length == "1504"
    assert fs.startswith("shardfs.open: fsspec is not installed: ")
    assert store.startswith("shardfs.open(...).store() needs zarr-python 3: ")
