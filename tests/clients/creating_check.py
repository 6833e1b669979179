#!/usr/bin/env python3
"""Arrays that clients create through a mount which stores them sharded.

    creating_check.py write CLIENT DIR    creates arrays in DIR: with zarr, tensorstore, xarray or sharding
    creating_check.py read CLIENT DIR     fails unless zarr-python, and TensorStore, read what was written
    creating_check.py shards DIR ARRAY... fails unless these arrays, and no others below DIR, are sharded
"""
import json
import os
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")

GRID = (np.arange(40 * 30, dtype="uint16") * 7).reshape(40, 30)
TIMES = np.arange(12, dtype="float64").reshape(12, 1) + np.arange(20) / 100


def write_zarr(path):
    import zarr
    root = zarr.open_group(path, mode="w", zarr_format=3, attributes={"made by": "zarr-python"})
    grid = root.create_array("grid", shape=GRID.shape, chunks=(4, 5), dtype="uint16", attributes={"unit": "m"})
    grid[:] = GRID
    # Made, and made anew in other chunks.
    for chunks in (10, 10), (8, 5):
        again = root.create_array("deep/again", shape=GRID.shape, chunks=chunks, dtype="uint16", overwrite=True)
        again[...] = GRID + chunks[0]
    grown = root.create_array("grown", shape=(6, 20), chunks=(2, 5), dtype="float64")
    grown[:] = TIMES[:6]
    grown.resize((12, 20))
    grown[6:] = TIMES[6:]
    grown.attrs["grown"] = True
    names = root.create_array("names", shape=(20,), chunks=(3,), dtype=str)
    names[:] = np.array([f"name {n}" for n in range(20)], dtype=object)
    scalar = root.create_array("scalar", shape=(), dtype="int32")
    scalar[...] = 7
    zarr.consolidate_metadata(path)


def read_zarr(path):
    import zarr
    for options in {}, {"use_consolidated": False}:
        root = zarr.open_group(path, mode="r", **options)
        np.testing.assert_array_equal(root["grid"][:], GRID)
        np.testing.assert_array_equal(root["deep/again"][:], GRID + 8)
        np.testing.assert_array_equal(root["grown"][:], TIMES)
        assert [str(name) for name in root["names"][:]] == [f"name {n}" for n in range(20)]
        assert root["scalar"][()] == 7
        assert dict(root["grown"].attrs) == {"grown": True} and root["grid"].attrs["unit"] == "m"
    np.testing.assert_array_equal(tensorstore(path + "/grid").read().result(), GRID)


def write_sharding(path):
    """Arrays that are made sharded by their client, among others; xarray's as well."""
    import zarr
    root = zarr.open_group(path, mode="w", zarr_format=3)
    for factor in 2, 3:
        grid = root.create_array("grid", shape=GRID.shape, chunks=(4, 5), shards=(8, 10), dtype="uint16", overwrite=True)
        grid[:] = GRID * factor
    root.create_array("by/rule", shape=GRID.shape, chunks=(4, 5), dtype="uint16")[:] = GRID
    zarr.consolidate_metadata(path)
    data = {"height": {"chunks": (2, 5), "shards": (4, 10)}, "time": {"chunks": (2,)}}
    for _ in range(2):
        dataset(0, 8).to_zarr(path + "/data", mode="w", zarr_format=3, consolidated=True, encoding=data)
    dataset(8, 12).to_zarr(path + "/data", append_dim="time", consolidated=True)


def read_sharding(path):
    import xarray
    import zarr
    for options in {}, {"use_consolidated": False}:
        root = zarr.open_group(path, mode="r", **options)
        np.testing.assert_array_equal(root["grid"][:], GRID * 3)
        np.testing.assert_array_equal(root["by/rule"][:], GRID)
        with xarray.open_zarr(path + "/data", zarr_format=3, consolidated=not options) as found:
            xarray.testing.assert_identical(found.load(), dataset(0, 12))
    np.testing.assert_array_equal(tensorstore(path + "/grid").read().result(), GRID * 3)


def tensorstore(path, **options):
    import tensorstore as ts
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return ts.open({**spec, **options.pop("spec", {})}, **options).result()


def write_tensorstore(path):
    metadata = {"shape": [40, 30], "data_type": "uint16",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
                "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}},
                           {"name": "bytes", "configuration": {"endian": "little"}},
                           {"name": "gzip", "configuration": {"level": 1}}]}
    for how in {"create": True}, {"create": True, "delete_existing": True}:
        array = tensorstore(path + "/grid", spec={"metadata": metadata}, **how)
        array.write(GRID + len(how)).result()
    array = array.resize(exclusive_max=[80, 30]).result()
    array[40:].write(GRID).result()


def read_tensorstore(path):
    import zarr
    expected = np.concatenate([GRID + 2, GRID])
    np.testing.assert_array_equal(tensorstore(path + "/grid").read().result(), expected)
    np.testing.assert_array_equal(zarr.open_array(path + "/grid", mode="r")[:], expected)


def dataset(first, last):
    import xarray
    values = {"height": (("time", "x"), TIMES[first:last], {"units": "m"})}
    return xarray.Dataset(values, coords={"time": np.arange(first, last), "x": np.arange(20) * 0.5})


def write_xarray(path):
    chunks = {"height": {"chunks": (2, 5)}, "time": {"chunks": (2,)}}
    for _ in range(2):
        dataset(0, 6).to_zarr(path, mode="w", zarr_format=3, consolidated=True, encoding=chunks)
    dataset(6, 12).to_zarr(path, append_dim="time", consolidated=True)


def read_xarray(path):
    import xarray
    with xarray.open_zarr(path, zarr_format=3) as found:
        xarray.testing.assert_identical(found.load(), dataset(0, 12))


def shards(path, expected):
    found = set()
    for directory, _, names in os.walk(path):
        if "zarr.json" in names:
            with open(os.path.join(directory, "zarr.json")) as f:
                codecs = json.load(f).get("codecs", [])
            if any(codec["name"] == "sharding_indexed" for codec in codecs):
                found.add(os.path.relpath(directory, path))
    assert found == set(expected), f"{found}, expected {set(expected)}"


command, *arguments = sys.argv[1:]
if command == "shards":
    shards(arguments[0], arguments[1:])
else:
    globals()[f"{command}_{arguments[0]}"](arguments[1])
