#!/usr/bin/env python3
"""References of `shardfs refs`, read by zarr-python through fsspec.

    refs_check.py corpus SHARDFS CORPUS OUT   zarr-python 3: every array of the corpus that it can read, from the
                                              source and from references; writes OUT/jobs for the next
    refs_check.py zarr2 OUT                   zarr-python 2: the same arrays, from references of --zarr2
    refs_check.py make2 DIRECTORY             zarr-python 2: arrays of every data type, order, filter and compressor
    refs_check.py read2 SHARDFS DIRECTORY     zarr-python 3: these, from references; TensorStore: their translated
                                              documents beside their own chunks
    refs_check.py damaged REFERENCES          zarr-python 3: a chunk that cannot be read is an error, the others are
                                              there

Each prints a line "ok ...", "FAIL ..." or "skipped: ..." for one result.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import zarr

import cases
from read_array import little_endian

warnings.simplefilter("ignore")

# Formats whose arrays no library of Zarr reads: the corpus has what is in them.
FOREIGN = ("draft2022", "bloscpack", "blz", "bcolz", "zarr2")


def attempt(name, work, *arguments):
    try:
        words = work(*arguments)
        print("ok", f"{name}: {words}" if words else name, flush=True)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print("FAIL", f"{name}: {text[:500]}", flush=True)


def opened(references, **more):
    """The root of a hierarchy or the array itself."""
    from fsspec.implementations.reference import ReferenceFileSystem

    if zarr.__version__.startswith("2."):
        fs = ReferenceFileSystem(references)
        return zarr.open(zarr.storage.FSStore("", fs=fs, check=False, create=False, mode="r"), mode="r")
    from zarr.storage import FsspecStore

    # What is local is wrapped by fsspec, so that it can be waited for.
    fs = ReferenceFileSystem(references, asynchronous=True)
    return zarr.open(FsspecStore(fs=fs, read_only=True, path=more.pop("path", "")), mode="r", **more)


def digest(array, regions):
    found = hashlib.sha256()
    for region in [...] if regions is None else regions:
        where = region if region is ... else tuple(slice(a, b) for a, b in region)
        found.update(little_endian(array[where]))
    return found.hexdigest()


def refs(shardfs, source, output, *options):
    done = subprocess.run([shardfs, "refs", *options, "-o", output, source], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr}")
    return output


def node_of(root, path):
    return root[path] if path else root


# --- the corpus --------------------------------------------------------------------------------------


def stores(corpus):
    for manifest in cases.manifests(corpus):
        yield manifest, True
    for family in FOREIGN:
        directory = os.path.join(corpus, "manifests", family)
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            with open(os.path.join(directory, name)) as f:
                yield json.load(f), False


def of_store(shardfs, corpus, store, out, done):
    """References to all of a store, of Zarr v3 and v2; as many chunks as must be are put in."""
    if store not in done:
        path = os.path.join(corpus, store)
        output = os.path.join(out, store.replace("/", "_"))
        inline = []
        try:
            refs(shardfs, path, output + ".json")
        except RuntimeError as error:
            if "compressed as a whole" not in str(error):
                raise
            inline = ["--inline", "1G"]
            refs(shardfs, path, output + ".json", *inline)
        done[store] = [output + ".json"]
        # Not every array has a form in Zarr v2; the references lack no chunk.
        options = ["--zarr2", "--skip-damaged", "--json-version", "0", *inline]
        command = [shardfs, "refs", *options, path, "-o", output + ".2.json"]
        subprocess.run(command, capture_output=True, check=False)
        done[store].append(output + ".2.json")
    return done[store]


def check_corpus(shardfs, corpus, out):
    done, jobs = {}, []
    for manifest, is_public in stores(corpus):
        case, store, where = manifest["case"], manifest["store"], manifest["node"]
        if manifest["data_type"] == "bytes" and "dtype" not in (manifest.get("metadata") or {}):
            # No array: nothing says what the bytes are.
            continue
        regions = cases.regions(manifest)
        refused = cases.REFUSED["zarr-python"].get(case)
        if refused:
            print("skipped:", f"{case}: {refused}", flush=True)
            continue

        def compare():
            want = manifest["crosscheck"].get("assembled_sha256")
            words = "read"
            if is_public:
                try:
                    want = digest(zarr.open(os.path.join(corpus, store, where), mode="r"), regions)
                except Exception:
                    # It reads some of them only as references.
                    assert want is not None and regions is None
                    words = "read, and refused when sharded"
            three, two = of_store(shardfs, corpus, store, out, done)
            array = node_of(opened(three), where)
            assert not array.metadata.to_dict().get("codecs", [{}])[0].get("name") == "sharding_indexed"
            if not is_public and len(array.shape) != len(manifest["shape"]):
                want = None
            got = digest(array, regions)
            if want is not None and got != want:
                raise AssertionError(f"values differ: {got[:16]}, expected {want[:16]}")
            if want is None:
                words += ", its shape is not the corpus's"
            jobs.append({"case": case, "refs": two, "node": where, "regions": regions, "sha256": got})
            return words

        attempt(case, compare)
    with open(os.path.join(out, "jobs"), "w") as f:
        json.dump(jobs, f)


def check_zarr2(out):
    with open(os.path.join(out, "jobs")) as f:
        jobs = json.load(f)
    for job in jobs:
        with open(job["refs"]) as f:
            prefix = job["node"] + "/" if job["node"] else ""
            if prefix + ".zarray" not in json.load(f):
                print("skipped:", f"{job['case']}: no form in Zarr v2", flush=True)
                continue

        def compare():
            got = digest(node_of(opened(job["refs"]), job["node"]), job["regions"])
            assert got == job["sha256"], f"values differ: {got[:16]}, expected {job['sha256'][:16]}"

        attempt(f"{job['case']} as zarr2", compare)


# --- arrays of Zarr v2 -------------------------------------------------------------------------------


def items(dtype, shape):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    numbers = np.arange(1, count + 1)
    if dtype.kind == "O":
        return np.array(["é" * (n % 4) + str(n) for n in numbers], dtype=object).reshape(shape)
    if dtype.names:
        found = np.zeros(count, dtype)
        for name in dtype.names:
            found[name] = items(dtype[name], (count,))
        return found.reshape(shape)
    if dtype.kind in "SU":
        return np.array([f"t{n}"[: dtype.itemsize] for n in numbers], dtype).reshape(shape)
    if dtype.kind == "V":
        return np.array([bytes([n % 251, 3, n % 7]) for n in numbers], dtype).reshape(shape)
    if dtype.kind == "b":
        return (numbers % 3 == 0).reshape(shape)
    if dtype.kind in "mM":
        return numbers.astype("i8").view(dtype.newbyteorder("=")).astype(dtype).reshape(shape)
    found = (numbers % 120).astype(dtype)
    if dtype.kind == "f":
        found = (found * 1.25).astype(dtype)
    if dtype.kind == "c":
        found = (found - 0.5j * numbers).astype(dtype)
    return found.reshape(shape)


def arrays2():
    """name: how zarr 2 makes it"""
    import numcodecs as nc

    numbers = [order + kind for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
               for order in "<>"]
    others = ["|b1", "|i1", "|u1", "<M8[ns]", ">M8[25s]", "<m8[D]", "|S5", "<U3", ">U3", "|V3"]
    found = {}
    for dtype in numbers + others:
        found[f"dtype_{dtype}"] = {"dtype": dtype}
    found["records"] = {"dtype": [("a", "<i4"), ("b", "<f8"), ("c", "|S3")]}
    fills = {"<i4": -7, "<u8": 2**64 - 1, "<f8": np.nan, ">f4": -np.inf, "<f2": 1.5, "<c8": complex(1.5, -2),
             "|b1": True, "|S5": b"ab", "<U3": "é", "|V3": b"\1\2\3", "<M8[ns]": np.datetime64("NaT", "ns")}
    for dtype, fill in fills.items():
        found[f"fill_{dtype}"] = {"dtype": dtype, "fill_value": fill}
        found[f"nofill_{dtype}"] = {"dtype": dtype, "fill_value": None, "complete": True}
    compressors = {
        "none": None, "zlib": nc.Zlib(3), "gzip": nc.GZip(4), "bz2": nc.BZ2(2), "lzma": nc.LZMA(), "lz4": nc.LZ4(),
        "zstd": nc.Zstd(5), "zstd_checksum": nc.Zstd(1, checksum=True),
        **{f"blosc_{name}_{shuffle}": nc.Blosc(name, 4, shuffle)
           for name in ("lz4", "lz4hc", "blosclz", "zlib", "zstd") for shuffle in (-1, 0, 1, 2)},
    }
    for name, compressor in compressors.items():
        found[f"compressor_{name}"] = {"dtype": "<i4", "compressor": compressor}
        found[f"compressor_{name}_F"] = {"dtype": ">u2", "compressor": compressor, "order": "F"}
    filters = {
        "delta": ("<i4", [nc.Delta("<i4")]),
        "delta_big": (">i4", [nc.Delta(">i4")]),
        "delta_narrow": ("<i4", [nc.Delta("<i4", "<i2")]),
        "delta_time": ("<M8[s]", [nc.Delta("<i8")]),
        "scale": ("<f8", [nc.FixedScaleOffset(0, 4, "<f8", "<u2")]),
        "scale_big": (">f8", [nc.FixedScaleOffset(0, 4, ">f8", ">i4")]),
        "quantize": ("<f4", [nc.Quantize(2, "<f4")]),
        "bitround": ("<f4", [nc.BitRound(12)]),
        "astype": ("<f8", [nc.AsType("<f4", "<f8")]),
        "packbits": ("|b1", [nc.PackBits()]),
        "shuffle": ("<i4", [nc.Shuffle(4)]),
        "crc32": ("<i4", [nc.CRC32()]),
        "adler32": ("<i4", [nc.Adler32()]),
        "fletcher32": ("<i4", [nc.Fletcher32()]),
        "crc32c": ("<i4", [nc.checksum32.CRC32C()]),
        "scale_delta_shuffle": (
            "<f4", [nc.FixedScaleOffset(1, 4, "<f4", "<i2"), nc.Delta("<i2"), nc.Shuffle(2), nc.CRC32()]),
    }
    for name, (dtype, list_) in filters.items():
        for order in "CF":
            found[f"filter_{name}_{order}"] = {"dtype": dtype, "filters": list_, "order": order}
            found[f"filter_{name}_{order}_zlib"] = {
                "dtype": dtype, "filters": list_, "order": order, "compressor": nc.Zlib(1)}
    found["texts"] = {"dtype": object, "object_codec": nc.VLenUTF8(), "fill_value": ""}
    found["texts_F"] = {"dtype": object, "object_codec": nc.VLenUTF8(), "order": "F", "fill_value": "none"}
    found["nested_keys"] = {"dtype": "<i4", "dimension_separator": "/"}
    found["scalar"] = {"dtype": "<f8", "shape": (), "chunks": ()}
    found["line_F"] = {"dtype": "<f8", "shape": (11,), "chunks": (3,), "order": "F"}
    found["volume_F"] = {"dtype": "<i2", "shape": (5, 6, 7), "chunks": (2, 3, 4), "order": "F"}
    found["group/inside"] = {"dtype": "<i4"}
    return found


def make2(directory):
    group = zarr.open_group(zarr.DirectoryStore(directory), mode="w")
    group.attrs["title"] = "two"
    for name, options in arrays2().items():
        options = {"shape": (7, 10), "chunks": (3, 4), "compressor": None, **options}
        complete = options.pop("complete", False)
        array = group.create(name, **options)
        array.attrs["_ARRAY_DIMENSIONS"] = [f"d{n}" for n in range(array.ndim)]
        values = items(array.dtype if options["dtype"] is not object else "O", array.shape)
        if array.ndim and not complete:
            # Chunks of fill values only do not exist.
            array[: array.chunks[0]] = values[: array.chunks[0]]
        else:
            array[...] = values
        path = os.path.join(directory, name + ".sha256")
        with open(path, "w") as f:
            # As zarr 2 reads it: some filters lose something.
            f.write(hashlib.sha256(little_endian(array[...])).hexdigest())


# TensorStore knows neither.
UNKNOWN = ("numcodecs.", "vlen-", "structured", "numpy.", "fixed_length_utf32", "null_terminated_bytes", "raw_bytes")


def with_tensorstore(documents, name, directory):
    """The translated document beside the array's own chunks."""
    import tensorstore

    path = os.path.join(directory, name)
    with open(os.path.join(path, "zarr.json"), "w") as f:
        f.write(documents[name + "/zarr.json"])
    try:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}}
        array = tensorstore.open(spec, open=True, read=True).result()
        return hashlib.sha256(little_endian(array.read().result())).hexdigest()
    finally:
        os.remove(os.path.join(path, "zarr.json"))


def read2(shardfs, directory):
    output = directory + ".json"
    refs(shardfs, directory, output)
    with open(output) as f:
        documents = json.load(f)["refs"]
    root = opened(output)

    def attributes():
        assert root.attrs["title"] == "two"
        assert root["nested_keys"].metadata.dimension_names == ("d0", "d1")
        assert "_ARRAY_DIMENSIONS" not in root["nested_keys"].attrs

    attempt("attributes and names of dimensions", attributes)
    count = 0
    for base, directories, files in os.walk(directory):
        for file in sorted(files):
            if not file.endswith(".sha256"):
                continue
            name = os.path.relpath(os.path.join(base, file), directory)[: -len(".sha256")]
            with open(os.path.join(base, file)) as f:
                want = f.read()

            def compare():
                got = hashlib.sha256(little_endian(root[name][...])).hexdigest()
                assert got == want, f"values differ: {root[name][...]!r}"
                if any(word in documents[name + "/zarr.json"] for word in UNKNOWN):
                    return "zarr-python"
                got = with_tensorstore(documents, name, directory)
                assert got == want, "values differ to TensorStore"
                return "zarr-python, TensorStore"

            attempt(name, compare)
            count += 1
    assert count > 100, count


def damaged(references):
    def check():
        array = opened(references)
        refused = 0
        for row in range(array.shape[0] // array.chunks[0]):
            try:
                array[row * array.chunks[0]]
            except Exception:
                refused += 1
        assert 0 < refused < array.shape[0] // array.chunks[0], refused
        return f"{refused} rows of chunks refused"

    attempt("a chunk that cannot be read is refused", check)


if __name__ == "__main__":
    commands = {"corpus": check_corpus, "zarr2": check_zarr2, "make2": make2, "read2": read2, "damaged": damaged}
    commands[sys.argv[1]](*sys.argv[2:])
