#!/usr/bin/env python3
"""Datasets as xarray writes them, and what it reads of them in whatever form shardfs shows or makes.

    xarray_check.py write DIRECTORY     xarray on zarr-python 3: the stores, and beside each STORE.pickle, what it
                                        reads of it
    xarray_check.py read JOBS           either zarr-python: each line of JOBS is a label, a store or references, and
                                        a pickle with what must be read, separated by tabs
    xarray_check.py netcdf JOBS         netCDF4: the same, as far as it has the data types
    xarray_check.py append STORE PICKLE either zarr-python: appends along time, and overwrites a part, in a writable
                                        view; PICKLE then says what must be read
"""

import json
import os
import pickle
import sys
import warnings

import numpy as np
import xarray as xr

warnings.simplefilter("ignore")

SHAPE = {"time": 4, "y": 6, "x": 8}
CHUNKS, SHARDS = (2, 3, 4), (4, 3, 8)
# What no reader of Zarr v2 has.
ONLY_V3 = {"other_fill"}


def ramp(dtype):
    """Numbers with zeros among them, and a chunk of zeros alone: Zarr v3 does not store it."""
    values = (np.arange(np.prod(list(SHAPE.values()))) % 7).reshape(tuple(SHAPE.values())).astype(dtype)
    values[2:, 3:, 4:] = 0
    return values


def with_nan(dtype="f8"):
    values = ramp(dtype)
    values[0, 0, 0] = values[3, 2, 1] = np.nan
    values[:2, :3, :4] = np.nan
    return values


def dataset(zarr_format):
    dims = tuple(SHAPE)
    packed = with_nan() * 0.5 + 270
    variables = {
        # Packed: the fill value of the array, 0, is one of the values.
        "packed": (packed, {"dtype": "i2", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -32768}),
        "packed_bytes": (with_nan(), {"dtype": "u1", "_FillValue": 255}),
        "packed_big": (with_nan(), {"dtype": ">i4", "_FillValue": 2}),
        "int8": (ramp("i1"), {}),
        "int32": (ramp("i4"), {}),
        "uint16": (ramp("u2"), {}),
        "other_fill": (ramp("i2") + 5, {"fill_value": 5}),
        "float16": (with_nan("f2"), {}),
        "float32": (with_nan("f4"), {}),
        "float_9999": (with_nan("f8"), {"_FillValue": -9999.0}),
        "float_1e20": (with_nan("f4"), {"_FillValue": np.float32(1e20)}),
        "float_zero": (with_nan("f4"), {"_FillValue": 0.0}),
        "float_without": (ramp("f8"), {"_FillValue": None}),
        "float_big": (with_nan("f8"), {"dtype": ">f8"}),
        "complex": (ramp("c8") * (1 + 2j), {}),
        "bool": (ramp("i1") > 3, {}),
        "text": (ramp("i4").astype(str).astype(object), {}),
        "some_text": (np.where(ramp("i4") > 0, "abc", "").astype(object), {}),
        "fixed_text": (np.where(ramp("i4") > 0, "é", ""), {}),
        "bytes": (np.where(ramp("i4") > 0, b"ab", b""), {}),
        "when": (np.datetime64("2000-01-01", "ns") + ramp("i8").astype("m8[D]"), {"dtype": "i8"}),
        "when_nat": (np.where(ramp("i4") > 3, np.datetime64("NaT"), np.datetime64("2000-01-01", "ns")), {}),
        "long": (ramp("i8").astype("m8[h]").astype("m8[ns]"), {}),
    }
    attributes = {"units": "K", "note": "ä", "levels": [1, 2.5], "flag_meanings": "a b"}
    data, encoding = {}, {}
    for name, (values, how) in variables.items():
        if zarr_format == 2 and name in ONLY_V3:
            continue
        own = {} if values.dtype.kind in "mM" else dict(attributes)
        data[name] = xr.Variable(dims, values, own)
        encoding[name] = {"chunks": CHUNKS, **how}
    # Some are old-fashioned.
    data["masked_twice"] = xr.Variable(dims, with_nan("f4"))
    encoding["masked_twice"] = {"chunks": CHUNKS, "_FillValue": np.float32(-1), "missing_value": np.float32(-1)}
    coordinates = {
        "time": np.datetime64("2000-01-01", "ns") + np.arange(4).astype("m8[D]"),
        "y": ("y", np.linspace(0, 50, 6), {"units": "degrees_north"}),
        "x": ("x", np.arange(8)),
        "spatial_ref": ((), 0, {"crs_wkt": 'GEOGCRS["WGS 84"]', "GeoTransform": "0 1 0 0 0 1"}),
        "reference_time": ((), np.datetime64("2000-01-01", "ns")),
        "label": ("x", np.array(list("abcdefgh"))),
    }
    return xr.Dataset(data, coordinates, {"Conventions": "CF-1.8", "history": ["one"]}), encoding


def write(directory):
    for zarr_format in (2, 3):
        ds, encoding = dataset(zarr_format)
        # Without a fill value zarr-python 2 reads anything where zarr-python 3 has stored no zeros.
        stores = {"plain": (False, {}), "consolidated": (True, {"write_empty_chunks": True})}
        if zarr_format == 3:
            stores["sharded"] = (True, {"shards": SHARDS})
            # As xarray up to 2025.8 wrote floating-point numbers.
            stores["zeros"] = (True, {"shards": SHARDS, "fill_value": 0})
        for name, (consolidated, more) in stores.items():
            store = f"{directory}/v{zarr_format}-{name}.zarr"
            how = {}
            for variable, own in encoding.items():
                own = {**more, **own}
                if "fill_value" in more and ds[variable].dtype.kind != "f":
                    own.pop("fill_value")
                how[variable] = own
            ds.to_zarr(store, zarr_format=zarr_format, consolidated=consolidated, encoding=how)
            keep(store)
    # netCDF-C opens no group with data types that it does not have.
    numbers = [name for name in ds.data_vars if ds[name].dtype.kind in "iuf" and ds[name].dtype != "f2"]
    how = {name: {"shards": SHARDS, **encoding[name]} for name in numbers}
    store = f"{directory}/v3-numbers.zarr"
    ds[numbers].drop_vars(["label", "time", "reference_time"]).to_zarr(store, zarr_format=3, encoding=how)
    keep(store)


def keep(store):
    with open(store + ".pickle", "wb") as file:
        pickle.dump(contents(open_store(store)), file)


def open_store(path):
    if not path.endswith(".json"):
        return xr.open_zarr(path, chunks=None).load()
    import fsspec
    import zarr

    if zarr.__version__ >= "3":
        # It knows Zarr v2 alone.
        if path.endswith("-zarr2.json"):
            return xr.open_dataset(path, engine="kerchunk").load()
        fs = fsspec.filesystem("reference", fo=path, asynchronous=True)
        store = zarr.storage.FsspecStore(fs=fs, read_only=True, path="")
        return xr.open_zarr(store, chunks=None).load()

    mapper = fsspec.get_mapper("reference://", fo=path)
    return xr.open_dataset(mapper, engine="zarr", backend_kwargs={"consolidated": False}).load()


def contents(ds):
    """All that identical() compares, in a form that every version can pickle."""
    variables = {}
    for name, variable in ds.variables.items():
        values, kind = variable.values, variable.dtype.kind
        if kind in "OTU":
            kind, values = "text", np.array([str(value) for value in values.flat], dtype=object).reshape(values.shape)
        else:
            kind = values.dtype.newbyteorder("=").str
        variables[name] = (variable.dims, kind, values, plain(variable.attrs))
    return {"variables": variables, "coordinates": sorted(ds.coords), "attributes": plain(ds.attrs)}


def plain(attributes):
    as_plain = lambda value: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    # Not every version takes it for its own.
    return {name: as_plain(value) for name, value in attributes.items() if value != "timedelta64[ns]"}


def equal(a, b):
    if a.dtype.kind in "fcmM":
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    return np.array_equal(a, b)


def differences(found, expected):
    if found["attributes"] != expected["attributes"]:
        yield f"attributes {found['attributes']}"
    if found["coordinates"] != expected["coordinates"]:
        yield f"coordinates {found['coordinates']}"
    for name in found["variables"].keys() ^ expected["variables"].keys():
        yield f"variable {name} is {'new' if name in found['variables'] else 'missing'}"
    for name, (dims, kind, values, attributes) in expected["variables"].items():
        if name not in found["variables"]:
            continue
        other = found["variables"][name]
        if other[0] != dims:
            yield f"{name}: dimensions {other[0]}"
        elif other[1] != kind:
            yield f"{name}: {other[1]}, expected {kind}"
        elif not equal(other[2], values):
            at = np.argwhere(other[2] != values)[0] if other[2].shape == values.shape else ()
            yield f"{name}: {other[2][tuple(at)]} at {list(at)}, expected {values[tuple(at)]}"
        elif other[3] != attributes:
            yield f"{name}: attributes {other[3]}"


def say(label, found):
    found = list(found)
    print("FAIL " + label + ": " + "; ".join(found[:4]) if found else "ok " + label, flush=True)


def jobs(path):
    with open(path) as file:
        for line in file:
            label, store, expected = line.rstrip("\n").split("\t")
            with open(expected, "rb") as file:
                yield label, store, pickle.load(file)


def read(path):
    import zarr

    for label, store, expected in jobs(path):
        label = f"{label}: identical, with zarr-python {zarr.__version__}"
        try:
            found = contents(open_store(store))
        except Exception as error:
            say(label, [f"{type(error).__name__}: {error}"])
            continue
        say(label, differences(found, expected))


def netcdf(path):
    """Numbers alone. netCDF4 has its own idea of packed ones, and of missing ones where nothing says which."""
    import netCDF4

    for label, store, expected in jobs(path):
        found = []
        try:
            with netCDF4.Dataset(f"file://{store}#mode=zarr,file") as ds:
                # It does not show what has no dimensions, unless it has made it.
                shown = {name: of for name, of in expected["variables"].items() if of[0]}
                for name, (_, kind, values, _) in shown.items():
                    found += netcdf_differences(ds, name, kind, values)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        say(f"{label}: the same numbers, with netCDF4", found)


def netcdf_differences(ds, name, kind, values):
    if kind[1:] not in {"i1", "i2", "i4", "i8", "u1", "u2", "f4", "f8"}:
        return
    variable = ds.variables.get(name)
    if variable is None:
        yield f"{name} is missing"
        return
    got = variable[...]
    if np.ma.isMaskedArray(got):
        got = got.astype("f8").filled(np.nan)
    if not equal(np.asarray(got, "f8").reshape(values.shape), values.astype("f8")):
        yield f"{name}: {np.asarray(got).flat[:5]}, expected {values.flat[:5]}"


def append(store, path):
    before = open_store(store)
    more = before.isel(time=slice(0, 2)).copy(deep=True)
    more["time"] = before.time.values[-1] + np.arange(1, 3).astype("m8[D]")
    # A chunk of nothing but missing values, and one of zeros.
    for name in ("packed", "packed_bytes", "float32", "float_9999", "float_1e20"):
        more[name][:, :3, :4] = np.nan
        more[name][:, 3:, 4:] = 0
    along = [name for name in more.variables if "time" in more[name].dims]
    # Where the store is consolidated, it is so again afterwards.
    kept = {"consolidated": False} if not os.path.exists(os.path.join(store, ".zmetadata")) else {}
    more[along].drop_vars(["spatial_ref", "reference_time"], errors="ignore").to_zarr(store, append_dim="time", **kept)
    # Another part, in place.
    part = before[["packed", "int8", "float32"]].isel(y=slice(3, 6)).copy(deep=True)
    part = part.drop_vars([name for name in part.variables if "y" not in part[name].dims])
    part["packed"][...] = np.nan
    part["int8"][...] = 3
    part["float32"][...] = np.nan
    part.drop_vars("y", errors="ignore").to_zarr(store, region={"time": slice(0, 4), "y": slice(3, 6)}, **kept)
    expected = xr.concat([before, more], "time", data_vars="minimal", coords="minimal", compat="override")
    for name in ("packed", "int8", "float32"):
        expected[name][:4, 3:6] = part[name]
    expected.attrs = before.attrs
    say("xarray appends and overwrites", differences(contents(xr.open_zarr(store, chunks=None).load()), contents(expected)))
    with open(path, "wb") as file:
        pickle.dump(contents(expected), file)


def kept(before, after):
    """Whether metadata of the source is what it was, but for shapes."""
    import pathlib

    for document in sorted(pathlib.Path(before).rglob("zarr.json")):
        then, now = (json.loads(path.read_text()) for path in (document, pathlib.Path(after, document.relative_to(before))))
        for one in (then, now):
            one.pop("shape", None)
            one.pop("consolidated_metadata", None)
        found = [] if then == now else [member for member in then if then[member] != now.get(member)]
        say(f"{document.parent.name}: its metadata is kept, but for the shape", found)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"write": write, "read": read, "netcdf": netcdf, "append": append, "kept": kept}[command](*arguments)
