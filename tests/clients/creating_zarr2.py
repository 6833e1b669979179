#!/usr/bin/env python3
"""Arrays that clients of Zarr v2 create through the view zarr2 of a mount which stores them sharded.

    creating_zarr2.py write CLIENT DIR    creates arrays in DIR: with zarr (2.18), xarray or netcdf
    creating_zarr2.py read CLIENT DIR     fails unless the client reads what was written
    creating_zarr2.py stored CLIENT DIR   the same in the source, where it is Zarr v3, with zarr-python 3 and TensorStore
"""
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")

GRID = np.arange(40 * 30).reshape(40, 30)
NAMES = [f"name {n}" for n in range(20)]


def write_zarr(path):
    import zarr
    root = zarr.open_group(path, mode="w")
    root.attrs["made by"] = "zarr-python 2"
    grid = root.create_dataset("grid", shape=GRID.shape, chunks=(4, 5), dtype="u2")
    grid[:] = GRID
    grid.attrs["unit"] = "m"
    # Made, and made anew in other chunks.
    for chunks in (10, 10), (8, 5):
        again = root.create_dataset("deep/again", shape=GRID.shape, chunks=chunks, dtype="u2", overwrite=True)
        again[:] = GRID + chunks[0]
    nested = root.create_dataset("nested", shape=GRID.shape, chunks=(4, 5), dtype=">f4", dimension_separator="/",
                                 order="F", fill_value=np.nan)
    nested[:] = GRID
    grown = root.create_dataset("grown", shape=(6, 20), chunks=(2, 5), dtype="f8", fill_value=None)
    grown[:] = 1
    grown.resize(12, 20)
    grown[6:] = 2
    for name, dtype in ("names", str), ("texts", "<U7"):
        names = root.create_dataset(name, shape=(20,), chunks=(3,), dtype=dtype)
        names[:] = np.array(NAMES, dtype=object)
    dates = root.create_dataset("dates", shape=(20,), chunks=(3,), dtype="M8[ns]")
    dates[:] = np.arange(20).astype("M8[ns]")
    root.create_dataset("scalar", shape=(), dtype="i4")[...] = 7
    zarr.consolidate_metadata(path)


def check_zarr(root):
    assert dict(root.attrs) == {"made by": "zarr-python 2"} and dict(root["grid"].attrs) == {"unit": "m"}
    np.testing.assert_array_equal(root["grid"][:], GRID)
    np.testing.assert_array_equal(root["deep/again"][:], GRID + 8)
    np.testing.assert_array_equal(root["nested"][:], GRID)
    np.testing.assert_array_equal(root["grown"][:], np.repeat([1, 2], 6 * 20).reshape(12, 20))
    assert [str(name) for name in root["names"][:]] == NAMES
    assert [str(name) for name in root["texts"][:]] == [name[:7] for name in NAMES]
    np.testing.assert_array_equal(root["dates"][:], np.arange(20).astype("M8[ns]"))
    assert root["scalar"][()] == 7


def read_zarr(path):
    import zarr
    check_zarr(zarr.open_group(path, mode="r"))
    check_zarr(zarr.open_consolidated(path, mode="r"))


def stored_zarr(path):
    import zarr
    for options in {}, {"use_consolidated": False}:
        check_zarr(zarr.open_group(path, mode="r", zarr_format=3, **options))
    for name, plus in ("grid", 0), ("deep/again", 8), ("nested", 0):
        np.testing.assert_array_equal(tensorstore(f"{path}/{name}"), GRID + plus)


def tensorstore(path):
    import tensorstore as ts
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return ts.open(spec).result().read().result()


def dataset(first, last):
    import xarray
    values = np.arange(12 * 20.0).reshape(12, 20)[first:last]
    counts = np.arange(12 * 20).reshape(12, 20)[first:last]
    axes = ("time", "x")
    variables = {"height": (axes, values, {"units": "m"}), "masked": (axes, counts), "count": (axes, counts)}
    return xarray.Dataset(variables, coords={"time": np.arange(first, last), "x": np.arange(20) * 0.5})


def write_xarray(path):
    chunks = {"height": {"chunks": (2, 5)}, "count": {"chunks": (2, 5)}, "time": {"chunks": (2,)},
              "masked": {"chunks": (2, 5), "_FillValue": 3}}
    for _ in range(2):
        dataset(0, 6).to_zarr(path, mode="w", consolidated=True, encoding=chunks)
    dataset(6, 12).to_zarr(path, append_dim="time", consolidated=True)


def read_xarray(path, **options):
    import xarray
    expected = dataset(0, 12)
    expected["masked"] = expected["masked"].where(expected["masked"] != 3)
    with xarray.open_zarr(path, **options) as found:
        xarray.testing.assert_equal(found.load(), expected)
        assert found["height"].attrs == {"units": "m"} and found["masked"].encoding["_FillValue"] == 3


def stored_xarray(path):
    read_xarray(path, zarr_format=3)


def netcdf(path, mode):
    import netCDF4
    return netCDF4.Dataset(f"file://{path}#mode=nczarr,file", mode)


def write_netcdf(path):
    with netcdf(path, "w") as made:
        made.createDimension("y", 40)
        made.createDimension("x", 30)
        grid = made.createVariable("grid", "f4", ("y", "x"), chunksizes=(4, 5), zlib=True, shuffle=False,
                                   fill_value=-1)
        grid.units = "K"
        grid[:] = GRID
        made.title = "t"


def read_netcdf(path):
    with netcdf(path, "r") as made:
        np.testing.assert_array_equal(made["grid"][:].data, GRID)
        assert made["grid"].units == "K" and made.title == "t"


def stored_netcdf(path):
    import zarr
    grid = zarr.open_array(path + "/grid", mode="r", zarr_format=3)
    np.testing.assert_array_equal(grid[:], GRID)
    assert grid.attrs["units"] == "K"


command, client, directory = sys.argv[1:]
globals()[f"{command}_{client}"](directory)
