"""The arrays of `make`."""
import os

import numpy as np

import view_arrays


def create(group, name, shape, chunk, shard, dtype, fill, compressor, dims=None, attributes=None,
           keys=("default", "/"), big=False, transpose=False):
    from zarr import codecs

    compressors = {"none": None, "zstd": codecs.ZstdCodec(level=3), "gzip": codecs.GzipCodec(level=1),
                   "blosc": codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")}[compressor]
    filters = codecs.TransposeCodec(order=tuple(range(len(shape)))[::-1]) if transpose else None
    serializer = codecs.BytesCodec(endian="big") if big else "auto"
    return group.create_array(
        name, shape=shape, chunks=chunk, shards=shard, dtype=dtype, fill_value=fill, compressors=compressors,
        filters=filters, serializer=serializer, dimension_names=dims, attributes=attributes,
        chunk_key_encoding={"name": keys[0], "separator": keys[1]})


def make(options):
    import zarr

    os.makedirs(options.dir, exist_ok=True)
    group = zarr.create_group(os.path.join(options.dir, "arrays.zarr"), attributes={"title": "made", "list": [1, "é"]})
    group.create_group("sub", attributes={"part": True}).create_group("deep")
    for name, (shape, chunk, shard, dtype, fill, compressor, more) in view_arrays.ARRAYS.items():
        array = create(group, name, shape, chunk, shard, dtype, fill, compressor, **more)
        if 0 not in shape:
            array[...] = view_arrays.values(name)
    text = group.create_array("text", shape=(20,), chunks=(3,), shards=(6,), dtype=str)
    text[...] = np.array(view_arrays.TEXT, dtype=object)
    zarr.consolidate_metadata(os.path.join(options.dir, "arrays.zarr"))

    huge = zarr.create_array(
        os.path.join(options.dir, "huge.zarr"), shape=view_arrays.HUGE_SHAPE, chunks=view_arrays.HUGE_CHUNK,
        shards=view_arrays.HUGE_SHARD, dtype="<u2", fill_value=9)
    for number, box in enumerate(view_arrays.HUGE_BOXES):
        huge[tuple(slice(a, b) for a, b in box)] = view_arrays.huge_values(number)

    for compressor, dtypes in view_arrays.NETCDF.items():
        path = os.path.join(options.dir, "netcdf.zarr", compressor)
        group = zarr.create_group(path, attributes={"codec": compressor})
        for kind, (shape, chunk, shard) in view_arrays.NETCDF_SHAPES.items():
            for dtype in dtypes:
                dims = [f"{kind}_{d}" for d in view_arrays.NETCDF_DIMS[len(shape)]]
                array = create(group, f"{kind}_{dtype}", shape, chunk, shard, dtype, 0, compressor, dims=dims)
                array[...] = view_arrays.netcdf_values(kind, dtype)

    path = os.path.join(options.dir, "dataset.zarr")
    group = zarr.create_group(path, attributes={"Conventions": "CF-1.8"})
    for name, (dims, values, attributes) in view_arrays.dataset_values().items():
        shard = tuple(4 * c for c in (2, 4, 5)[-values.ndim:]) if values.ndim > 1 else None
        chunk = (2, 4, 5)[-values.ndim:] if shard else values.shape
        fill = np.nan if values.dtype.kind == "f" else 0
        create(group, name, values.shape, chunk, shard, values.dtype, fill, "zstd", dims=dims,
               attributes=attributes)[...] = values
    zarr.consolidate_metadata(path)
