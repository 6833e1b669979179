"""An array of which each chunk is a file."""
import os

import numpy as np

from .documents import METADATA, is_filled2, is_hidden, metadata_problems, zarr2_problems
from .files import first_difference, in_order, listed, npy_problem, read_file, sha256, swapped
from .results import Differences, Skipped


def chunk_problem(path, expected, grid, row, options):
    """What is wrong with the file of one chunk; `row` is None where it should be full of fill values."""
    try:
        return difference_in_chunk(path, expected, grid, row, options)
    except Differences as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except Exception as error:  # NumPy refuses it
        return f"{type(error).__name__}: {error}"


def difference_in_chunk(path, expected, grid, row, options):
    form, data = options.form, read_file(path)
    if form == "zarr2":
        if "sha256" in row and sha256(data) != row["sha256"]:
            return f"{len(data)} bytes are not the {row['nbytes']} encoded ones (sha256 {sha256(data)[:16]})"
        return None
    clipped = expected.clipped(grid)
    shape = clipped if options.edge == "clip" else expected.chunk_shape
    dtype = expected.dtype
    if form == "npy":
        problem = npy_problem(path, data, shape, dtype and in_order(dtype, options.endian))
        if problem:
            return problem
        start = 10 if data[6] == 1 else 12
        data = data[start + int.from_bytes(data[8:start], "little"):]
    if dtype is not None:
        if len(data) != np.prod(shape, dtype=int) * dtype.itemsize:
            return f"{len(data)} bytes of values, expected {np.prod(shape, dtype=int) * dtype.itemsize}"
        if options.endian == "big" and dtype.kind == "c":
            data = swapped(data, np.dtype(f"<f{dtype.itemsize // 2}"))
        elif options.endian == "big":
            data = swapped(data, dtype)
    elif options.endian == "big" and expected.data_type == "bfloat16":
        data = swapped(data, np.dtype("<u2"))
    if row is None:
        return first_difference(data, expected.fill(shape))
    if shape == expected.chunk_shape:
        if "decoded_sha256" in row:
            return None if sha256(data) == row["decoded_sha256"] else \
                f"other values (sha256 {sha256(data)[:16]}, expected {row['decoded_sha256'][:16]})" + where(
                    data, expected, grid, shape)
    if expected.metadata["fill_value"] is None:
        # No library reads the source.
        return None
    return first_difference(data, expected.region(grid))


def where(data, expected, grid, shape):
    """Which value is the first that is different, as the source is read."""
    try:
        part = np.frombuffer(data, expected.dtype).reshape(shape)[tuple(slice(0, n) for n in expected.clipped(grid))]
        want = np.frombuffer(expected.region(grid), expected.dtype).reshape(part.shape)
        bits = f"V{expected.dtype.itemsize}"
        differ = np.argwhere(np.ascontiguousarray(part).view(bits) != want.view(bits))
        if not len(differ):
            return ": outside of the array"
        at = tuple(map(int, differ[0]))
        return f": {part[at]!r} at {at}, the source has {want[at]!r}"
    except Exception:  # only words
        return ""


def check_decoded(expected, top, options):
    """Raises Differences or Skipped; says how many chunks are right."""
    form = options.form
    reason, must = expected.why_hidden()
    problems = []
    if form == "zarr2":
        # What is stored otherwise is compared as a whole.
        problems = zarr2_problems(expected, top)
    elif reason and is_hidden(expected, top):
        raise Skipped(f"not shown: {reason}")
    elif must:
        raise Differences([f"is shown, but cannot be decoded: {reason}"])
    elif not os.path.isdir(top):
        raise Differences(["is not shown"])
    else:
        problems = metadata_problems(expected, top, form)

    def name(grid):
        return expected.key2(grid) if form == "zarr2" else f"{expected.key(grid)}.{form}"

    rows = dict(expected.present)
    if options.missing == "fill" and form != "zarr2":
        rows |= {grid: None for grid in expected.absent}
    files = {name(grid): (grid, row) for grid, row in rows.items()}
    either = {name(grid) for grid in expected.open_question}
    filled2 = form == "zarr2" and is_filled2(expected.metadata, top)
    if filled2:
        either |= {name(grid) for grid in expected.absent}
    if expected.absent_listed or options.missing == "absent":
        extra = {".zarray", ".zattrs"} if form == "zarr2" else {METADATA[form]}
        found = set(listed(top)) - either - extra
        problems += [f"{n}: listed, but should not be" for n in sorted(found - set(files))]
        problems += [f"{n}: not listed" for n in sorted(set(files) - found)]
    for file, (grid, row) in sorted(files.items()):
        problem = chunk_problem(os.path.join(top, file), expected, grid, row, options)
        if problem:
            problems.append(f"{file}: {problem}")
    if filled2:
        problems += [f"{name(grid)}: is not there" for grid in list(expected.absent)[:2000]
                     if not os.path.lexists(os.path.join(top, name(grid)))]
    elif options.missing == "absent" or form == "zarr2":
        for grid in list(expected.absent)[:2000]:
            if os.path.lexists(os.path.join(top, name(grid))):
                problems.append(f"{name(grid)}: is there, but is empty in the source")
    # Beyond the array there is nothing, whatever is filled.
    for axis in range(len(expected.grid)):
        grid = tuple(n if i == axis else 0 for i, n in enumerate(expected.grid))
        if os.path.lexists(os.path.join(top, name(grid))):
            problems.append(f"{name(grid)}: is there, but outside of the array")
    if problems:
        raise Differences(problems)
    return f"{len(files)} chunks"
