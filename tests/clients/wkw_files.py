"""Data sets of webknossos-wrap, made by its own library, and what a mount shows of them.

    wkw_files.py make DIR            NAME/header.wkw and so on, and what the library reads: NAME.npy
    wkw_files.py array NPY ARRAY     the array of the view flat is the library's
"""

import os
import sys

import numpy as np

numbers = np.random.default_rng(5)


def make(directory):
    import wkw

    def store(name, dtype, boxes, block_type, channels=1, block=8, file=4):
        header = wkw.Header(
            dtype,
            num_channels=channels,
            block_len=block,
            file_len=file,
            block_type=getattr(wkw.Header, "BLOCK_TYPE_" + block_type),
        )
        dataset = wkw.Dataset.create(os.path.join(directory, name), header)
        edge = block * file
        top = np.zeros(3, int)
        for offset, shape in boxes:
            data = (numbers.integers(0, 200, (channels, *shape)) // 8).astype(dtype)
            dataset.write(offset, data if channels > 1 else data[0])
            top = np.maximum(top, np.add(offset, shape))
        whole = -(-top // edge) * edge
        read = dataset.read((0, 0, 0), whole.tolist())
        np.save(os.path.join(directory, name + ".npy"), read[0] if channels == 1 else read)
        dataset.close()

    two = [((0, 0, 0), (56, 32, 32))]
    # Files with gaps between them, none of which is the first.
    apart = [((40, 0, 70), (10, 8, 8)), ((0, 33, 0), (8, 8, 8))]
    aligned = [((32, 0, 64), (32, 32, 32)), ((0, 32, 0), (32, 32, 32))]
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64):
        store(f"raw-{np.dtype(dtype).name}", dtype, two, "RAW")
    store("raw-apart", np.uint8, apart, "RAW")
    store("raw-colors", np.uint8, two, "RAW", channels=3)
    for block_type in ("LZ4", "LZ4HC"):
        store(f"{block_type.lower()}-uint16", np.uint16, [((0, 0, 0), (64, 32, 32))], block_type)
        store(f"{block_type.lower()}-apart", np.float32, aligned, block_type)


def array(expected, shown):
    expected, shown = np.load(expected), np.load(shown, mmap_mode="r")
    if shown.dtype.kind == "V":
        # Channels are the bytes of a voxel.
        shown = np.moveaxis(shown[..., None].view(expected.dtype), -1, 0)
    np.testing.assert_array_equal(shown, expected)


if __name__ == "__main__":
    {"make": make, "array": array}[sys.argv[1]](*sys.argv[2:])
