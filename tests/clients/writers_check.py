#!/usr/bin/env python3
"""Hierarchies as their writers make them, in Zarr v2 and v3.

    writers_check.py write CLIENT FORMAT DIR     ome_zarr, ngff_zarr, anndata, dask, zarrs, tensorstore or gdal,
                                                 FORMAT 2 or 3
    writers_check.py same FORMAT DIR OTHER       fails unless both have the same groups and arrays, as they are seen
    writers_check.py stored DIR OTHER            fails unless DIR has the arrays of OTHER in Zarr v3, sharded if there is
                                                 more than one chunk
"""
import sys
import warnings

import numpy as np
import zarr

warnings.simplefilter("ignore")


def volume(*shape, dtype="u2"):
    return (np.arange(np.prod(shape)) % 1013).reshape(shape).astype(dtype)


def write_ome_zarr(path, zarr_format):
    from ome_zarr import format, writer
    version = format.FormatV05() if zarr_format == 3 else format.FormatV04()
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    image = volume(2, 8, 48, 48)
    writer.write_image(image=image, group=root, axes="czyx", fmt=version, storage_options={"chunks": (1, 2, 16, 16)})
    writer.write_labels((image[0] > 100).astype("u1"), group=root, name="cells", axes="zyx", fmt=version,
                        storage_options={"chunks": (2, 16, 16)})
    root.attrs["omero"] = {"channels": [{"color": "00FFFF", "label": "r", "active": True}] * 2}


def write_ngff_zarr(path, zarr_format):
    import ngff_zarr
    image = ngff_zarr.to_ngff_image(volume(16, 48, 48), dims=["z", "y", "x"], scale={"z": 2.0, "y": 1.0, "x": 1.0},
                                    name="image")
    for _ in range(2):
        scales = ngff_zarr.to_multiscales(image, scale_factors=[2], chunks=16)
        ngff_zarr.to_ngff_zarr(path, scales, version="0.5" if zarr_format == 3 else "0.4", overwrite=True)


def write_anndata(path, zarr_format):
    import anndata
    import pandas
    import scipy.sparse
    anndata.settings.zarr_write_format = zarr_format
    cells, genes = 200, 60
    obs = pandas.DataFrame({"kind": pandas.Categorical(["a", "b"] * (cells // 2)), "score": np.arange(cells) * 0.5},
                           index=[f"cell{n}" for n in range(cells)])
    data = anndata.AnnData(X=volume(cells, genes, dtype="f4"), obs=obs,
                           var=pandas.DataFrame(index=[f"gene{n}" for n in range(genes)]),
                           uns={"p": {"number": 1, "text": "t", "list": np.arange(3000)}},
                           layers={"counts": scipy.sparse.csr_matrix(volume(cells, genes, dtype="i4") % 3)})
    for _ in range(2):
        data.write_zarr(path, chunks=(20, 30))


def write_dask(path, zarr_format):
    import dask
    import dask.array
    values = dask.array.from_array(volume(96, 96, dtype="f4"), chunks=(16, 16))
    with dask.config.set(scheduler="threads", num_workers=4):
        root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        for name, blocks, lock in ("aligned", 16, False), ("across", 24, True):
            array = root.create_array(name, shape=(96, 96), chunks=(16, 16), dtype="f4")
            dask.array.store(values.rechunk(blocks) + 1, array, lock=lock)


def write_zarrs(path, zarr_format):
    import zarrs  # noqa: F401
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    codecs = zarr.codecs
    for name, options in ("blosc", {"compressors": codecs.BloscCodec(cname="lz4", shuffle="shuffle")}), (
            "turned", {"filters": [codecs.TransposeCodec(order=(1, 0))], "compressors": codecs.GzipCodec(level=3)}):
        array = root.create_array(name, shape=(96, 60), chunks=(16, 16), dtype="f4", attributes={"a": 1}, **options)
        array[:] = volume(96, 60)
        array[5:33, 7:50] = 0


def write_tensorstore(path, zarr_format):
    import tensorstore
    zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for factor in 2, 1:
        spec = {"driver": "zarr3" if zarr_format == 3 else "zarr",
                "kvstore": {"driver": "file", "path": f"{path}/array"}}
        chunks = tensorstore.ChunkLayout(chunk_shape=[8, 16])
        # The second one takes the place of the first.
        array = tensorstore.open(spec, create=True, delete_existing=True, dtype="float64", shape=[40, 64],
                                 chunk_layout=chunks).result()
        array.write(volume(40, 64, dtype="f8") * factor).result()


def write_gdal(path, _):
    import rasterio
    image = volume(200, 300)
    options = {"driver": "Zarr", "width": 300, "height": 200, "count": 1, "dtype": "uint16", "BLOCKSIZE": "64,64"}
    with rasterio.open(path, "w", FORMAT="ZARR_V2", COMPRESS="ZLIB", **options) as made:
        made.write(image, 1)
    with rasterio.open(path, "r+") as made:
        np.testing.assert_array_equal(made.read(1), image)
        made.write(image[:64] * 2, 1, window=((100, 164), (0, 300)))
        made.update_tags(unit="m")


def members(path, zarr_format):
    root = zarr.open_group(path, mode="r", zarr_format=zarr_format, use_consolidated=False)
    return {"": root, **dict(root.members(max_depth=None))}


def check_values(name, one, other):
    np.testing.assert_array_equal(one[...], other[...], err_msg=name)


def same(zarr_format, path, other):
    found, expected = members(path, zarr_format), members(other, zarr_format)
    assert found.keys() == expected.keys(), f"{sorted(found)}, expected {sorted(expected)}"
    for name, node in expected.items():
        assert dict(found[name].attrs) == dict(node.attrs), f"{name}: {dict(found[name].attrs)}"
        if isinstance(node, zarr.Array):
            assert found[name].metadata.dtype == node.metadata.dtype and found[name].chunks == node.chunks, name
            check_values(name, found[name], node)


def stored(path, other):
    expected = members(other, 3 if (zarr.open_group(other, mode="r").metadata.zarr_format == 3) else 2)
    found = members(path, 3)
    assert found.keys() == expected.keys(), f"{sorted(found)}, expected {sorted(expected)}"
    for name, node in expected.items():
        if isinstance(node, zarr.Array):
            check_values(name, found[name], node)
            assert (found[name].shards is not None) == (node.nchunks > 1), f"{name}: {found[name].shards}"


command, *arguments = sys.argv[1:]
if command == "write":
    globals()[f"write_{arguments[0]}"](arguments[2], int(arguments[1]))
elif command == "same":
    same(int(arguments[0]), *arguments[1:])
else:
    stored(*arguments)
