#!/usr/bin/env python3
"""Real libraries write through a mount; the source is read without it.

    write_array.py prepare CORPUS COPIES       what will be written to: copies of arrays of the corpus, for each
                                               library one, and hierarchies
    write_array.py write CORPUS COPIES VIEW    VIEW: where COPIES is mounted for writing

`write` prints a line "ok ..." or "FAIL ..." for each array.  After random regions were written and the mount's
root was synchronised, another library must read the expected values from the source, and so must the corpus's
own parser of shards, which also checks them.
"""
import hashlib
import json
import os
import random
import shutil
import sys
import traceback
import warnings

import numpy as np

warnings.simplefilter("ignore")

# One for each way of keys, indexes and codecs around the shards.
CASES = [
    "zarrpy/r2_i2_gzip", "zarrpy/r3_u2_v2dot", "zarrpy/r2_u2_zstd_crc_start", "zarrpy/r4_i8_big_endian",
    "zarrpy/r2_u2_transpose_before", "zarrpy/r2_u2_nested", "zarrpy/r2_c8_zstd_default_dot",
    "zarrpy/r2_u1_never_written", "zarrpy/r5_bool_gzip_v2slash", "tensorstore/ts_r3_f4_nested",
    "tensorstore/ts_r2_be_index_transposed", "tensorstore/ts_r2_v2_dot", "tensorstore/ts_r2_u2_start_sparse",
    "zarrs/rs_r0", "zarrs/rs_r2_outer_crc", "zarrs/rs_r2_f4_partial_start", "crafted/cr_start_far",
]
# Codecs as bare strings, and a checksum after sharding: nobody but its writer reads that.
READ_BY_ITS_WRITER = {"zarrs/rs_r2_outer_crc"}
LIBRARIES = ("zarr-python", "tensorstore", "zarrs")
ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}


# --- the libraries -----------------------------------------------------------------------------------


def tensorstore_open(path, write):
    import tensorstore

    kvstore = {"driver": "file", "path": os.path.normpath(path) + "/"}
    return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True, write=write).result()


def read(library, path):
    if library == "tensorstore":
        return np.asarray(tensorstore_open(path, False).read().result())
    import zarr

    with zarr.config.set(ZARRS if library == "zarrs" else {}):
        return np.asarray(zarr.open_array(path, mode="r")[...])


def write(library, path, regions):
    if library == "tensorstore":
        array = tensorstore_open(path, True)
        for region, values in regions:
            (array[region] if region else array).write(values).result()
        return
    import zarr

    with zarr.config.set(ZARRS if library == "zarrs" else {}):
        array = zarr.open_array(path, mode="r+")
        for region, values in regions:
            array[region if region else ...] = values


# --- what is written ---------------------------------------------------------------------------------


def random_values(numbers, shape, dtype):
    raw = np.array([numbers.randrange(256) for _ in range(int(np.prod(shape)))]).reshape(shape)
    return (raw % 2 if dtype.kind == "b" else raw).astype(dtype)


def random_regions(numbers, shape, chunk, dtype, fill):
    """Parts of chunks, whole chunks, many chunks, fill values only."""
    regions = []
    for n in range(8):
        region = []
        for extent, edge in zip(shape, chunk):
            if n % 4 == 1:
                start = numbers.randrange(-(-extent // edge)) * edge
                region.append(slice(start, min(start + edge, extent)))
            else:
                start = numbers.randrange(extent)
                region.append(slice(start, numbers.randrange(start, extent) + 1))
        region = tuple(region)
        size = tuple(s.stop - s.start for s in region)
        values = np.full(size, fill, dtype) if n % 4 == 3 else random_values(numbers, size, dtype)
        regions.append((region, values))
    return regions


def checksum(values):
    values = np.asarray(values)
    return hashlib.sha256(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).tobytes()).hexdigest()


class Corpus:
    def __init__(self, path):
        self.path = path
        sys.path.insert(0, path)
        import expect

        self.expect = expect

    def manifest(self, case):
        with open(os.path.join(self.path, "manifests", case + ".json")) as f:
            return json.load(f)

    def check(self, root, store, node, want):
        """Reads the shards of an array with the corpus's own parser: their structure and values."""
        case = {"case": store, "family": "", "store": store, "node": node, "writer": ""}
        document = self.expect.zarr3(case, root)
        found = document["crosscheck"].get("assembled_sha256")
        assert found == checksum(want), f"the shards hold other values: {document['crosscheck']}"
        for shard in document.get("shards", []):
            assert shard["present_chunks"] > 0, f"{shard['key']} is a shard without chunks"
            ranges = sorted((c["offset"], c["offset"] + c["nbytes"]) for c in document["levels"][0]["chunks"]
                            if c.get("shard") == shard["key"] and c.get("nbytes") and c["offset"] is not None)
            for (_, end), (begin, _) in zip(ranges, ranges[1:]):
                assert end <= begin, f"{shard['key']}: chunks overlap at {begin}"


def synchronise(view):
    fd = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def read_by_another(writer, path, want, needed=True):
    """Some layouts are refused by some libraries: one of the others must do."""
    others = LIBRARIES[LIBRARIES.index(writer) + 1:] + LIBRARIES[:LIBRARIES.index(writer)]
    refused = []
    for library in others:
        try:
            got = read(library, path)
        except Exception as error:
            refused.append(f"{library}: {error}")
            continue
        assert got.shape == want.shape, (library, got.shape, want.shape)
        assert checksum(got) == checksum(want), f"{library} reads other values at {where_different(got, want)}"
        return library
    if not needed:
        return "the corpus's parser alone"
    raise AssertionError(f"nobody else can read it: {refused}")


def where_different(a, b):
    return np.argwhere(np.asarray(a) != np.asarray(b))[:3].tolist()


# --- arrays of the corpus ------------------------------------------------------------------------------


def copy_name(library, case):
    return f"{library}--{case.replace('/', '--')}.zarr"


def write_case(corpus, copies, view, library, case):
    manifest = corpus.manifest(case)
    name, node = copy_name(library, case), manifest["node"]
    before = read("zarr-python", os.path.join(view, name, node))
    assert checksum(before) == manifest["crosscheck"]["assembled_sha256"], "not what the corpus has"
    level = manifest["levels"][-1]
    numbers = random.Random(name)
    fill = corpus.expect.fill_array(manifest, corpus.expect.np_dtype(manifest["data_type"]))
    regions = random_regions(numbers, manifest["shape"], level["chunk_shape"], before.dtype, fill)
    want = before.copy()
    for region, values in regions:
        want[region if region else ...] = values
    write(library, os.path.join(view, name, node), regions)
    through_mount = read(library, os.path.join(view, name, node))
    assert checksum(through_mount) == checksum(want), f"the mount shows others at {where_different(through_mount, want)}"
    synchronise(view)
    corpus.check(copies, name, node, want)
    needed = case not in READ_BY_ITS_WRITER
    return "read by " + read_by_another(library, os.path.join(copies, name, node), want, needed)


# --- hierarchies ---------------------------------------------------------------------------------------


def make_group(path, separator):
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=3)
    for name in "abc":
        array = group.create_array(
            name, shape=(30, 20), chunks=(5, 4), shards=(10, 8), dtype="int32", fill_value=-1,
            chunk_key_encoding={"name": "default", "separator": separator})
        array[...] = initial()


def initial():
    return np.arange(600, dtype="int32").reshape(30, 20)


class Hierarchy:
    """Each test on a group of its own, with sharded arrays a, b, c."""

    def __init__(self, corpus, copies, view, name):
        self.corpus, self.root, self.name, self.top = corpus, copies, name, view
        self.view, self.source = os.path.join(view, name), os.path.join(copies, name)

    def settle(self):
        synchronise(self.top)

    def stored(self, node):
        with open(os.path.join(self.source, node, "zarr.json")) as f:
            return json.load(f)

    def holds(self, node, want, writer="zarr-python"):
        self.settle()
        self.corpus.check(self.root, self.name, node, want)
        read_by_another(writer, os.path.join(self.source, node), want)

    def attributes(self):
        import zarr

        group = zarr.open_group(self.view, mode="r+")
        group.attrs["title"] = "changed"
        group["a"].attrs.update({"unit": "nm", "list": [1, 2.5, None]})
        group["a"].attrs["unit"] = "m"
        del group["a"].attrs["list"]
        assert dict(zarr.open_group(self.view, mode="r")["a"].attrs) == {"unit": "m"}
        assert self.stored("")["attributes"] == {"title": "changed"}
        assert self.stored("a")["attributes"] == {"unit": "m"}
        assert "sharding_indexed" in str(self.stored("a")["codecs"])
        self.holds("a", initial())

    def resize_and_append(self):
        import zarr

        array = zarr.open_array(os.path.join(self.view, "a"), mode="r+")
        want = np.full((43, 33), -1, "int32")
        want[:30, :20] = initial()
        array.resize((43, 33))
        array[25:43, 15:33] = 7
        want[25:43, 15:33] = 7
        self.holds("a", want)
        more = np.arange(33 * 9, dtype="int32").reshape(9, 33)
        array.append(more)
        want = np.concatenate([want, more])
        self.holds("a", want)
        array.append(np.full((52, 2), 5, "int32"), axis=1)
        self.holds("a", np.concatenate([want, np.full((52, 2), 5, "int32")], axis=1))

    def shrink(self):
        import zarr

        array = zarr.open_array(os.path.join(self.view, "a"), mode="r+")
        array.resize((12, 7))
        self.holds("a", initial()[:12, :7])
        array.resize((30, 20))
        want = np.full((30, 20), -1, "int32")
        # What is outside in a chunk that stays is nobody's to remove.
        want[:15, :8] = initial()[:15, :8]
        self.holds("a", want)

    def delete(self):
        import zarr

        group = zarr.open_group(self.view, mode="r+")
        group["a"][0:7, 0:7] = 3
        del group["a"]
        assert sorted(group.array_keys()) == ["b", "c"]
        assert not os.path.exists(os.path.join(self.view, "a"))
        self.settle()
        assert sorted(os.listdir(self.source)) == ["b", "c", "zarr.json"], os.listdir(self.source)
        self.holds("b", initial())

    def create_unsharded(self):
        import zarr

        group = zarr.open_group(self.view, mode="r+")
        values = initial() * 2
        array = group.create_array("new", shape=(30, 20), chunks=(7, 9), dtype="int32", fill_value=0)
        array[...] = values
        group.create_group("sub").create_array("deep", data=values, chunks=(30, 20))
        self.settle()
        for node in "new", "sub/deep":
            for library in LIBRARIES:
                got = read(library, os.path.join(self.source, node))
                assert checksum(got) == checksum(values), (library, node)
                got = read(library, os.path.join(self.view, node))
                assert checksum(got) == checksum(values), (library, node)
        # And in the place of a sharded one.
        array = group.create_array("a", shape=(30, 20), chunks=(7, 9), dtype="int32", overwrite=True, fill_value=0)
        array[...] = values
        self.settle()
        assert checksum(read("tensorstore", os.path.join(self.source, "a"))) == checksum(values)
        assert checksum(read("tensorstore", os.path.join(self.view, "a"))) == checksum(values)

    def create_sharded(self):
        """The view shows it as it is stored; the next mount, which this test has none of, shows its chunks."""
        import zarr

        group = zarr.open_group(self.view, mode="r+")
        for factor in 2, 3:
            values = initial() * factor
            array = group.create_array("new", shape=(30, 20), chunks=(5, 4), shards=(10, 8), dtype="int32", overwrite=True)
            array[...] = values
            array.resize((40, 20))
            array[30:] = values[:10]
            array.attrs["factor"] = factor
            values = np.concatenate([values, values[:10]])
            zarr.consolidate_metadata(self.view)
            for place in self.view, self.source:
                for options in {}, {"use_consolidated": False}:
                    found = zarr.open_group(place, mode="r", **options)["new"]
                    assert found.shards == (10, 8) and dict(found.attrs) == {"factor": factor}, (place, options)
                for library in LIBRARIES:
                    got = read(library, os.path.join(place, "new"))
                    assert checksum(got) == checksum(values), (place, library)
        # Beside arrays that are shown with their chunks.
        assert zarr.open_group(self.view, mode="r")["a"].shards is None
        self.settle()
        self.holds("a", initial())

    def fill(self):
        """What is all fill value is removed, and shards with it."""
        import zarr

        array = zarr.open_array(os.path.join(self.view, "a"), mode="r+")
        array[0:10, :] = -1
        want = initial()
        want[0:10, :] = -1
        self.holds("a", want)
        array[...] = -1
        self.settle()
        left = [f for base, _, files in os.walk(os.path.join(self.source, "a")) for f in files if ".shardfs" not in base]
        assert left == ["zarr.json"], left
        array[3, 3] = 4
        want[...] = -1
        want[3, 3] = 4
        self.holds("a", want)

    def tensorstore_resize(self):
        import tensorstore

        array = tensorstore_open(os.path.join(self.view, "b"), True)
        array = array.resize(exclusive_max=[12, 7], resize_tied_bounds=True).result()
        self.holds("b", initial()[:12, :7], "tensorstore")
        array = array.resize(exclusive_max=[33, 25], expand_only=True).result()
        array[5:33, 5:25].write(8).result()
        want = np.full((33, 25), -1, "int32")
        want[:15, :8] = initial()[:15, :8]
        want[5:33, 5:25] = 8
        self.holds("b", want, "tensorstore")
        assert isinstance(array, tensorstore.TensorStore)

    def tensorstore_transaction(self):
        import tensorstore

        array = tensorstore_open(os.path.join(self.view, "c"), True)
        want = initial()
        with tensorstore.Transaction() as transaction:
            within = array.with_transaction(transaction)
            within[0:30:2, :] = 1
            within[:, 0:20:3] = 2
        want[0:30:2, :] = 1
        want[:, 0:20:3] = 2
        self.holds("c", want, "tensorstore")
        # Two of them, each conditional on what it has read.
        other = tensorstore_open(os.path.join(self.view, "c"), True)
        writes = [a[n::4, :].write(10 + n) for n, a in enumerate([array, other, array, other])]
        for done in writes:
            done.result()
        for n in range(4):
            want[n::4, :] = 10 + n
        self.holds("c", want, "tensorstore")


HIERARCHIES = {
    "attributes": "zarr-python changes attributes of a group and an array",
    "resize_and_append": "zarr-python resizes and appends",
    "shrink": "zarr-python shrinks an array",
    "delete": "zarr-python deletes an array of a group",
    "create_unsharded": "zarr-python creates unsharded arrays",
    "create_sharded": "zarr-python creates sharded arrays, makes them anew, resizes and consolidates them",
    "fill": "zarr-python writes fill values",
    "tensorstore_resize": "TensorStore resizes, shrinking",
    "tensorstore_transaction": "TensorStore's transactions and conditional writes",
}
SEPARATORS = {"slash": "/", "dot": "."}


# --- commands --------------------------------------------------------------------------------------------


def prepare(corpus, copies):
    for case in CASES:
        store = os.path.join(corpus.path, corpus.manifest(case)["store"])
        for library in LIBRARIES:
            shutil.copytree(store, os.path.join(copies, copy_name(library, case)))
    for test in HIERARCHIES:
        for keys, separator in SEPARATORS.items():
            make_group(os.path.join(copies, f"{test}-{keys}"), separator)


def attempt(name, work):
    try:
        words = work()
        print("ok", f"{name} ({words})" if words else name, flush=True)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        where = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print("FAIL", f"{name}: {text[:300]} (lines {where or line})", flush=True)


def main():
    command, corpus, copies, *view = sys.argv[1:]
    corpus = Corpus(corpus)
    if command == "prepare":
        return prepare(corpus, copies)
    for library in LIBRARIES:
        for case in CASES:
            attempt(f"{library} writes {case}", lambda: write_case(corpus, copies, view[0], library, case))
    for test, words in HIERARCHIES.items():
        for keys in SEPARATORS:
            hierarchy = Hierarchy(corpus, copies, view[0], f"{test}-{keys}")
            attempt(f"{words}, keys with a {keys}", getattr(hierarchy, test))


if __name__ == "__main__":
    main()
