#!/usr/bin/env python3
"""Writing through views of `shardfs mount --rw --view`, as the source shows it.

    views_write.py written SOURCE      what zarr2_read.py has written is in the source
    views_write.py decoded SOURCE VIEW --form npy|raw [--endian big] [--keep-fill]    decoded chunks are written

VIEW is where SOURCE, arrays.zarr of `views_check make`, is mounted.  Prints a line "ok ...", "FAIL ..." or
"skipped: ..." for each result.  zarr-python 3 and TensorStore read the source.
"""
import argparse
import json
import os
from io import BytesIO

import numpy as np

import view_arrays
from read_array import little_endian
from views_check.expected import from_source
from views_check.files import first_difference, in_order, read_file
from views_check.results import Differences, Skipped, attempt


def tensorstore(path):
    import tensorstore as ts

    kvstore = {"driver": "file", "path": os.path.normpath(path) + "/"}
    return ts.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result().read().result()


# --- zarr 2 ---------------------------------------------------------------------------------------------------


def written(options):
    """What zarr 2 has written, as zarr-python 3 and TensorStore read it."""
    import zarr

    def holds(name, want):
        path = os.path.join(options.source, name)
        for reader, got in (("zarr-python", zarr.open_array(path, mode="r")[...]), ("TensorStore", tensorstore(path))):
            got = np.asarray(got)
            if got.shape != want.shape:
                raise Differences([f"{reader}: shape {got.shape}, expected {want.shape}"])
            problem = first_difference(little_endian(got), little_endian(want))
            if problem:
                raise Differences([f"{reader}: {problem}"])
        codecs = json.dumps(zarr.open_array(path, mode="r").metadata.to_dict()["codecs"], default=str)
        if ("sharding_indexed" in codecs) != (view_arrays.ARRAYS[name][2] is not None):
            raise Differences(["sharded before, and not now"])

    for name in view_arrays.WRITTEN:
        attempt(f"zarr 2 wrote {name}", holds, name, view_arrays.written(name))
    attempt("zarr 2 resized an array and filled it", holds, view_arrays.RESIZED, view_arrays.resized())

    def attributes(node, before):
        with open(os.path.join(options.source, node, "zarr.json")) as f:
            document = json.load(f)
        want = {**before, **view_arrays.ATTRIBUTES}
        if document.get("attributes") != want:
            raise Differences([f"attributes {document.get('attributes')}, expected {want}"])
        names = view_arrays.ARRAYS[node][6].get("dims") if node in view_arrays.ARRAYS else None
        if document.get("dimension_names") != names:
            raise Differences([f"dimension_names {document.get('dimension_names')}, expected {names}"])

    attempt("zarr 2 changed an array's attributes", attributes, "i4_none", {})
    attempt("zarr 2 changed a group's attributes", attributes, "sub", {"part": True})


# --- writing decoded chunks ----------------------------------------------------------------------------------


def synchronise(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def expect_errno(number, work, *arguments):
    try:
        work(*arguments)
    except OSError as error:
        if error.errno != number:
            raise Differences([f"errno {error.errno} ({error.strerror}), expected {number}"]) from error
    else:
        raise Differences([f"succeeded, expected errno {number}"])


def put(path, data):
    """Only close() may complain."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, data)
    except OSError as error:
        os.close(fd)
        raise Differences([f"write: {error}"]) from error
    os.close(fd)


class Writer:
    """Chunks of one array, written in one form."""

    def __init__(self, source, view, name, options):
        self.name, self.form, self.options = name, options.form, options
        self.source, self.top = os.path.join(source, name), os.path.join(view, name)
        self.root = view
        self.shape, self.chunk, _, dtype, self.fill, _, _ = view_arrays.ARRAYS[name]
        self.dtype = np.dtype(dtype)
        self.order = in_order(self.dtype, options.endian)
        self.expected = from_source(self.source)
        self.want = np.array(tensorstore(self.source))

    def path(self, grid):
        return os.path.join(self.top, f"{self.expected.key(grid)}.{self.form}")

    def box(self, grid):
        return tuple(slice(i * c, min(i * c + c, n)) for i, c, n in zip(grid, self.chunk, self.shape))

    def values(self, seed):
        count = int(np.prod(self.chunk))
        found = (np.arange(count).reshape(self.chunk) * 7 + seed) % 120 + 1
        return found.astype(self.dtype)

    def encoded(self, values):
        if self.form == "raw":
            return values.astype(self.order).tobytes()
        stream = BytesIO()
        np.save(stream, values.astype(self.order))
        return stream.getvalue()

    def expect(self, grid, values):
        box = self.box(grid)
        self.want[box] = values[tuple(slice(0, s.stop - s.start) for s in box)]

    def settled(self):
        synchronise(self.root)
        got = np.asarray(tensorstore(self.source))
        problem = first_difference(little_endian(got), little_endian(self.want))
        if problem:
            raise Differences([f"TensorStore reads from the source: {problem}"])

    def shows(self, grid, values):
        """The file, at once."""
        data = read_file(self.path(grid))
        if self.form == "npy":
            found = np.load(self.path(grid), allow_pickle=False)
            if found.dtype != self.order or found.shape != values.shape:
                raise Differences([f"shows {found.dtype.str} {found.shape}"])
            data = found.tobytes()
        problem = first_difference(data, values.astype(self.order).tobytes())
        if problem:
            raise Differences([f"{self.path(grid)}: {problem}"])

    # each of these is one check

    def renamed(self):
        """A temporary file in the mount, and rename."""
        for number, grid in enumerate(np.ndindex(*self.expected.grid)):
            values, path = self.values(number), self.path(grid)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            temporary = os.path.join(os.path.dirname(path), f".{number}.partial")
            with open(temporary, "wb") as f:
                f.write(self.encoded(values))
            os.rename(temporary, path)
            self.shows(grid, values)
            self.expect(grid, values)
        self.settled()

    def straight(self):
        for number, grid in enumerate(np.ndindex(*self.expected.grid)):
            values, path = self.values(number + 50), self.path(grid)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if self.form == "npy":
                np.save(path, values.astype(self.order))
            else:
                values.astype(self.order).tofile(path)
            self.shows(grid, values)
            self.expect(grid, values)
        self.settled()

    def in_another_layout(self):
        """A .npy file says itself how its values lie; the chunk is C order and the view's byte order again."""
        if self.form == "raw" or len(self.chunk) < 2:
            raise Skipped("nothing to say it" if self.form == "raw" else "one dimension has one order only")
        grid = (0,) * len(self.shape)
        for values in (np.asfortranarray(self.values(7)), self.values(8).astype(self.order.newbyteorder())):
            before = read_file(self.path(grid))
            try:
                np.save(self.path(grid), values)
            except OSError as error:
                # It may be refused, as a whole.
                assert error.errno == 22, error
                assert read_file(self.path(grid)) == before, "refused, but changed"
                continue
            self.shows(grid, values.astype(self.dtype))
            self.expect(grid, values.astype(self.dtype))
        self.settled()

    def wrong_size(self):
        grid = (0,) * len(self.shape)
        path, before = self.path(grid), read_file(self.path(grid))
        right = self.encoded(self.values(3))
        larger = np.zeros(tuple(c + 1 for c in self.chunk), self.order)
        bad = {"one byte short": right[:-1], "one byte long": right + b"\0", "one byte": b"\1"}
        if self.form == "npy":
            bad |= {"another shape": self.encoded(larger), "a header only": right[:64],
                    "no header": self.values(3).tobytes()}
        for words, data in bad.items():
            try:
                expect_errno(22, put, path, data)
                if read_file(path) != before:
                    raise Differences(["the chunk is changed"])
                temporary = os.path.join(os.path.dirname(path), ".bad.partial")
                put(temporary, data)
                expect_errno(22, os.rename, temporary, path)
                if read_file(path) != before:
                    raise Differences(["the chunk is changed by rename"])
                os.unlink(temporary)
            except Differences as error:
                raise Differences([f"{words}: {error}"]) from error
        self.settled()

    def wrong_type(self):
        if self.form == "raw":
            raise Skipped("raw bytes have no type")
        grid = (0,) * len(self.shape)
        path, before = self.path(grid), read_file(self.path(grid))
        for dtype in ("<f8" if self.dtype.kind != "f" or self.dtype.itemsize != 8 else "<i8", "<U1", "|V16"):
            expect_errno(22, np.save, path, np.zeros(self.chunk, dtype))
            if read_file(path) != before:
                raise Differences([f"{dtype}: the chunk is changed"])
        # Objects are pickled: never looked into.
        expect_errno(22, np.save, path, np.full(self.chunk, None))
        if read_file(path) != before:
            raise Differences(["objects: the chunk is changed"])
        self.settled()

    def fill_value(self):
        grid = (0,) * len(self.shape)
        values = np.full(self.chunk, self.fill, self.dtype)
        put(self.path(grid), self.encoded(values))
        self.expect(grid, values)
        self.settled()
        there = os.path.exists(self.path(grid))
        if there != self.options.keep_fill:
            raise Differences([f"the chunk of fill values is {'there' if there else 'removed'}"])
        if there:
            self.shows(grid, values)

    def removed(self):
        grid = tuple(n - 1 for n in self.expected.grid)
        os.unlink(self.path(grid))
        self.expect(grid, np.full(self.chunk, self.fill, self.dtype))
        self.settled()
        if os.path.exists(self.path(grid)):
            raise Differences(["still there"])


WRITES = {
    "renamed": "chunks are renamed onto their names", "straight": "chunks are written straight to their names",
    "in_another_layout": "Fortran order or the other byte order",
    "wrong_size": "a wrong size is EINVAL and the chunk stays",
    "wrong_type": "a wrong data type is EINVAL and the chunk stays",
    "fill_value": "a chunk of fill values", "removed": "a chunk is removed",
}


def write(options):
    words = f"{options.form}{' big' if options.endian == 'big' else ''}{' --keep-fill' if options.keep_fill else ''}"
    for name in view_arrays.WRITTEN:
        for test, what in WRITES.items():
            def work(name=name, test=test):
                getattr(Writer(options.source, options.view, name, options), test)()

            attempt(f"{words} {name}: {what}", work)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("written")
    one.add_argument("source")
    one.set_defaults(work=written)
    one = commands.add_parser("decoded")
    one.add_argument("source")
    one.add_argument("view")
    one.add_argument("--form", choices=("npy", "raw"), required=True)
    one.add_argument("--endian", choices=("little", "big"), default="little")
    one.add_argument("--keep-fill", action="store_true")
    one.set_defaults(work=write)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
