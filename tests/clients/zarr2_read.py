#!/usr/bin/env python3
"""Readers that know no sharding on views of `shardfs mount --view`: zarr 2, xarray, netCDF-C, SimpleITK, pynrrd.

    zarr2_read.py arrays JOBS          JOBS: from views_check jobs; zarr 2 reads every array and group
    zarr2_read.py write VIEW           zarr 2 writes to the arrays of views_check make, in a view zarr2
    zarr2_read.py xarray VIEW          the view zarr2 of dataset.zarr, consolidated and not
    zarr2_read.py netcdf VIEW          the view zarr2 of netcdf.zarr, read by the netCDF-C of the package netCDF4
    zarr2_read.py ncdump VIEW          the same, read by the program ncdump
    zarr2_read.py images VIEW          every array.mhd and array.nhdr of a view flat
    zarr2_read.py foreign VIEWS        arrays of other formats, lines "manifest<TAB>mount point" of the views zarr2, npy
                                       and flat: zarr 2 and NumPy read what the library of the format did

Each prints a line "ok ...", "FAIL ..." or "skipped: ..." for one result.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np

import view_arrays
from read_array import little_endian

warnings.simplefilter("ignore")


class Skipped(Exception):
    """Why there is nothing to check."""


def attempt(name, work, *arguments):
    try:
        words = work(*arguments)
        print("ok", f"{name}: {words}" if words else name, flush=True)
    except Skipped as reason:
        print("skipped:", f"{name}: {reason}", flush=True)
    except Exception as error:
        line, trace = 0, error.__traceback__
        while trace:
            if trace.tb_frame.f_code.co_filename == __file__:
                line = trace.tb_lineno
            trace = trace.tb_next
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print("FAIL", f"{name}: {text[:500]} (line {line})", flush=True)


def equal_values(got, want, what=""):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}shape {got.shape}, expected {want.shape}"
    if little_endian(got) != little_endian(want.astype(got.dtype)):
        differ = np.argwhere(~((got == want) | ((got != got) & (want != want))))
        at = tuple(map(int, differ[0])) if len(differ) else ()
        words = f"{got[at]!r} at {at}, expected {want[at]!r}" if len(differ) else "other bits"
        raise AssertionError(f"{what}{words} ({len(differ)} differ)")


# --- zarr 2 reads ------------------------------------------------------------------------------------------


def read_array(job):
    import hashlib

    import zarr

    assert "unread" not in job, job["unread"]
    path = job["path"]
    if not os.path.exists(os.path.join(path, ".zarray")):
        assert not job["must"], "has a v2 form, but no .zarray"
        raise Skipped("has no v2 form, and is shown as it is stored")
    assert not os.path.exists(os.path.join(path, "zarr.json")), ".zarray and zarr.json"
    try:
        array = zarr.open_array(path, mode="r")
        digest = hashlib.sha256()
        if job["regions"] is None:
            digest.update(little_endian(array[...]))
        else:
            for box in job["regions"]:
                digest.update(little_endian(array[tuple(slice(a, b) for a, b in box)]))
    except Exception as error:
        if job["must"]:
            raise
        raise Skipped(f"shown as v2, and refused: {type(error).__name__}: {error}"[:200]) from error
    assert list(array.shape) == job["shape"] and list(array.chunks) == job["chunks"], \
        f"shape {array.shape}, chunks {array.chunks}, expected {job['shape']}, {job['chunks']}"
    assert digest.hexdigest() == job["sha256"], f"other values ({where_different(array, job)})"
    if job["fill_is_null"]:
        assert array.fill_value in (None, 0), f"fill value {array.fill_value!r}, expected null"
    elif array.fill_value is None:
        assert job["dimensions"] is not None or not job["shape"], "fill value null"
    elif job["fill"] is not None:
        got = little_endian(np.asarray(array.fill_value).astype(array.dtype)).hex()
        want = np.frombuffer(bytes.fromhex(job["fill"]), array.dtype.newbyteorder("<"))[0]
        assert got == job["fill"] or want != want and array.fill_value != array.fill_value, \
            f"fill value {array.fill_value!r}, expected {want!r}"
    attributes = array.attrs.asdict()
    dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
    if "_ARRAY_DIMENSIONS" not in job["attributes"]:
        want = job["dimensions"] if job["shape"] else []
        assert dimensions == want, f"_ARRAY_DIMENSIONS {dimensions}, expected {job['dimensions']}"
    job["attributes"].pop("_ARRAY_DIMENSIONS", None)
    assert same_json(attributes, job["attributes"]), f"attributes {attributes}, expected {job['attributes']}"


def where_different(array, job):
    """The first value, and its chunk, that is not what zarr-python 3 reads from the source."""
    kind = f"dtype {array.dtype.str}, order {array.order}, {array.compressor}"
    if not os.path.exists(job["dump"]):
        return kind
    got, want = array[...], np.load(job["dump"])
    if got.dtype.newbyteorder("=") != want.dtype.newbyteorder("="):
        return f"{kind}, expected {want.dtype.str}"
    differ = np.argwhere(~((got == want) | ((got != got) & (want != want))))
    if not len(differ):
        return f"{kind}: equal, but not in all bits"
    at = tuple(map(int, differ[0]))
    chunk = tuple(i // c for i, c in zip(at, job["chunks"]))
    return f"{kind}: {got[at]!r} at {at} in chunk {chunk}, expected {want[at]!r}, {len(differ)} differ"


def same_json(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def read_group(job):
    import zarr

    path = job["group"]
    group = zarr.open_group(path, mode="r")
    attributes = group.attrs.asdict()
    assert same_json(attributes, job["attributes"]), f"attributes {attributes}, expected {job['attributes']}"
    there = os.path.exists(os.path.join(path, ".zmetadata"))
    assert there == job["consolidated"], f".zmetadata is {'there' if there else 'not there'}"
    members = sorted(n for n in os.listdir(path) if os.path.isfile(os.path.join(path, n, ".zarray")))
    assert sorted(group.array_keys()) == members, f"arrays {sorted(group.array_keys())}, expected {members}"
    if not there:
        return f"{len(members)} arrays"
    with open(os.path.join(path, ".zmetadata")) as f:
        found = json.load(f)["metadata"]
    for base, _, files in os.walk(path):
        for name in files:
            if name in (".zarray", ".zattrs", ".zgroup"):
                file = os.path.join(base, name)
                key = os.path.relpath(file, path)
                with open(file) as f:
                    document = json.load(f)
                # Empty attributes may be left out.
                assert same_json(found.pop(key, {} if name == ".zattrs" else None), document), f".zmetadata: {key}"
    found = {k: v for k, v in found.items() if v or not k.endswith(".zattrs")}
    assert not found, f".zmetadata: {sorted(found)} are no files"
    consolidated = zarr.open_consolidated(path, mode="r")
    assert sorted(consolidated.array_keys()) == members
    return f"{len(members)} arrays, consolidated"


def arrays(jobs):
    with open(jobs) as f:
        jobs = [json.loads(line) for line in f]
    for job in jobs:
        attempt(f"zarr 2 reads {job['id']}", read_group if "group" in job else read_array, job)


# --- other formats -----------------------------------------------------------------------------------------


def chunk_files(top, array):
    """The array put together of its files .npy."""
    values, count = np.zeros_like(array), 0
    for base, _, files in os.walk(top):
        for file in (f for f in files if f.endswith(".npy")):
            key = os.path.relpath(os.path.join(base, file[:-len(".npy")]), top)
            grid = tuple(map(int, re.findall("[0-9]+", key)))[:values.ndim]
            chunk = np.load(os.path.join(base, file))
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(grid, chunk.shape))
            part = values[box if box else ...]
            values[box if box else ...] = chunk[tuple(slice(0, n) for n in part.shape)]
            count += 1
    assert count, "no files"
    return values


def read_foreign(manifest, mount):
    import zarr

    draft = manifest["family"] == "draft2022"
    inside = os.path.join("data/root", manifest["node"]) if draft else manifest["node"]
    tops = {form: os.path.normpath(os.path.join(mount, form, inside)) for form in ("zarr2", "npy", "flat")}
    if manifest["family"] == "bloscpack" and "dtype" not in (manifest["metadata"] or {}):
        found = [form for form, top in tops.items() if os.listdir(top)]
        assert not found, f"shown, but its data type is not known: {found}"
        raise Skipped("its data type is not known")
    array = zarr.open_array(tops["zarr2"], mode="r")[...]
    flat = np.load(os.path.join(tops["flat"], "array.npy"))
    got = {"zarr2": array, "flat": flat, "npy": chunk_files(tops["npy"], flat)}
    for form, values in got.items():
        digest = hashlib.sha256(little_endian(values)).hexdigest()
        assert digest == manifest["crosscheck"]["assembled_sha256"], f"{form}: other values ({values.dtype.str})"
    return f"{array.dtype.str} {list(array.shape)}"


def foreign(views):
    with open(views) as f:
        views = [line.rstrip("\n").split("\t") for line in f]
    for path, mount in views:
        with open(path) as f:
            manifest = json.load(f)
        attempt(f"zarr 2 and NumPy read {manifest['case']}", read_foreign, manifest, mount)


# --- zarr 2 writes -----------------------------------------------------------------------------------------


def write(view):
    import zarr

    def one(name):
        array = zarr.open_array(os.path.join(view, name), mode="r+")
        equal_values(array[...], view_arrays.values(name), "before: ")
        for where, what in view_arrays.parts(name):
            array[where] = what
        equal_values(zarr.open_array(os.path.join(view, name), mode="r")[...], view_arrays.written(name), "after: ")

    def resize():
        array = zarr.open_array(os.path.join(view, view_arrays.RESIZED), mode="r+")
        array.resize(view_arrays.RESIZED_TO)
        array[view_arrays.FILLED_FROM:] = view_arrays.resized()[view_arrays.FILLED_FROM:]
        equal_values(zarr.open_array(os.path.join(view, view_arrays.RESIZED), mode="r")[...], view_arrays.resized())

    def attributes(path, opened):
        before = opened.attrs.asdict()
        opened.attrs.update(view_arrays.ATTRIBUTES)
        # One that comes and goes.
        opened.attrs["gone"] = 1
        del opened.attrs["gone"]
        with open(os.path.join(path, ".zattrs")) as f:
            found = json.load(f)
        assert same_json(found, {**before, **view_arrays.ATTRIBUTES}), found

    for name in view_arrays.WRITTEN:
        attempt(f"zarr 2 writes {name}", one, name)
    attempt("zarr 2 resizes an array", resize)
    path = os.path.join(view, "i4_none")
    attempt("zarr 2 changes an array's attributes", lambda: attributes(path, zarr.open_array(path, mode="r+")))
    group = os.path.join(view, "sub")
    attempt("zarr 2 changes a group's attributes", lambda: attributes(group, zarr.open_group(group, mode="r+")))
    # Durable, for whoever reads the source next.
    fd = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


# --- xarray ------------------------------------------------------------------------------------------------


def read_dataset(view):
    import xarray

    want = view_arrays.dataset_values()

    def opened(consolidated, decode):
        dataset = xarray.open_zarr(view, consolidated=consolidated, chunks=None, decode_times=decode)
        assert dataset.attrs == {"Conventions": "CF-1.8"}, dataset.attrs
        assert dict(dataset.sizes) == {"time": 6, "y": 20, "x": 30}, dict(dataset.sizes)
        assert set(dataset.coords) == {"time", "y", "x"}, set(dataset.coords)
        assert set(dataset.variables) == set(want), set(dataset.variables)
        return dataset

    def check(consolidated):
        dataset = opened(consolidated, False)
        for name, (dims, values, attributes) in want.items():
            variable = dataset[name]
            assert list(variable.dims) == dims, f"{name}: dimensions {variable.dims}"
            assert variable.attrs == attributes, f"{name}: attributes {variable.attrs}"
            equal_values(variable.values, values, f"{name}: ")
        dataset = opened(consolidated, True)
        assert str(dataset["time"].values[3])[:10] == "2000-01-07", dataset["time"].values
        got = dataset["temperature"].sel(time="2000-01-03", y=5, method="nearest")
        equal_values(got.values, want["temperature"][1][1, np.abs(want["y"][1] - 5).argmin()], "selected: ")

    attempt("xarray opens the view, consolidated", check, True)
    attempt("xarray opens the view, not consolidated", check, False)


# --- netCDF-C ----------------------------------------------------------------------------------------------

# NCZarr has filters by these names; "gzip" is none of them ("zlib" is).
CODECS_OF_NETCDF = ("none", "zstd", "blosc")
# Without plugins, and Debian has none, ncdump 4.9.0 prints compressed bytes as if they were values.
CODECS_OF_NCDUMP = ("none",)


def netcdf_variables(codec):
    for kind in view_arrays.NETCDF_SHAPES:
        for dtype in view_arrays.NETCDF[codec]:
            yield kind, dtype, f"{kind}_{dtype}"


def url(view, codec):
    return f"file://{os.path.abspath(os.path.join(view, codec))}#mode=zarr,file"


def netcdf(view):
    import netCDF4

    version = f"netCDF-C {netCDF4.__netcdf4libversion__}"
    for codec in view_arrays.NETCDF:
        if codec not in CODECS_OF_NETCDF:
            print("skipped:", f"{version} has no filter {codec}")
            continue

        def check(codec=codec):
            with netCDF4.Dataset(url(view, codec)) as dataset:
                assert dataset.codec == codec, f"attribute codec is {dataset.codec!r}"
                for kind, dtype, name in netcdf_variables(codec):
                    variable = dataset[name]
                    variable.set_auto_maskandscale(False)
                    want = view_arrays.netcdf_values(kind, dtype)
                    assert variable.dtype == np.dtype(dtype), f"{name}: {variable.dtype}"
                    dims = tuple(f"{kind}_{d}" for d in view_arrays.NETCDF_DIMS[want.ndim])
                    assert variable.dimensions == dims, f"{name}: dimensions {variable.dimensions}"
                    equal_values(variable[...], want, f"{name}: ")
                return f"{len(dataset.variables)} variables"

        attempt(f"{version} reads {codec}", check)


def ncdump(view):
    for codec in CODECS_OF_NCDUMP:
        def check(codec=codec):
            done = subprocess.run(["ncdump", "-p", "9,17", url(view, codec)], capture_output=True, text=True,
                                  timeout=60)
            assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-200:]}"
            assert f':codec = "{codec}"' in done.stdout, "no attribute of the group"
            data = done.stdout.split("\ndata:\n", 1)[1]
            count = 0
            for kind, dtype, name in netcdf_variables(codec):
                found = re.search(rf"^\s*{name} =([^;]*);", data, re.M)
                assert found, f"{name}: not there"
                words = [w.strip() for w in found[1].split(",")]
                want = view_arrays.netcdf_values(kind, dtype)
                # "_" is netCDF's own fill value, and none of ours.
                kind_of_number = float if want.dtype.kind == "f" else int
                got = np.array([kind_of_number(w.rstrip("fdLUu")) for w in words]).reshape(want.shape)
                equal_values(got.astype(dtype), want, f"{name}: ")
                count += 1
            return f"{count} variables"

        attempt(f"ncdump reads {codec}", check)


# --- images ------------------------------------------------------------------------------------------------


def images(view):
    import nrrd
    import SimpleITK

    def stored(top):
        """Complex numbers are two channels."""
        found = np.load(os.path.join(top, "array.npy"), mmap_mode="r")
        if found.dtype.kind != "c":
            return found, False
        return found[..., None].view(f"{found.dtype.byteorder}f{found.dtype.itemsize // 2}"), True

    def metaimage(top):
        want, channels = stored(top)
        path = os.path.join(top, "array.mhd")
        if not 2 <= want.ndim - channels <= 5 or want.size > 1 << 24:
            raise Skipped("ITK's images have 2 to 5 dimensions" if want.size <= 1 << 24 else "is large")
        got = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path))
        equal_values(got, np.asarray(want).astype(got.dtype))
        assert got.dtype == want.dtype.newbyteorder("=") or want.dtype.kind == "b", \
            f"{got.dtype}, expected {want.dtype}"
        return f"{want.dtype.str} {list(want.shape)}"

    def nearly_raw(top):
        want, _ = stored(top)
        if want.size > 1 << 24:
            raise Skipped("is large")
        got, _ = nrrd.read(os.path.join(top, "array.nhdr"), index_order="C")
        equal_values(got, np.asarray(want).astype(got.dtype))
        assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("=") or want.dtype.kind == "b", \
            f"{got.dtype}, expected {want.dtype}"
        return f"{want.dtype.str} {list(want.shape)}"

    count = 0
    for base, directories, files in os.walk(view):
        directories.sort()
        name = os.path.relpath(base, view)
        for file, reader, check in (("array.mhd", "SimpleITK", metaimage), ("array.nhdr", "pynrrd", nearly_raw)):
            if file in files:
                count += 1
                attempt(f"{reader} reads {os.path.join(name, file)}", check, base)
    if not count:
        print("FAIL no headers of images")


def main():
    command, path = sys.argv[1:]
    {"arrays": arrays, "write": write, "xarray": read_dataset, "netcdf": netcdf, "ncdump": ncdump, "images": images,
     "foreign": foreign}[command](path)


if __name__ == "__main__":
    main()
