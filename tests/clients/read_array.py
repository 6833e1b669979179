#!/usr/bin/env python3
"""Read arrays with one library and print a checksum of their values.

    read_array.py LIBRARY JOBS      LIBRARY: zarr-python, tensorstore or zarrs

JOBS is a file with one JSON object a line:

    {"id": ..., "path": directory of the array, "regions": null or [[[start, stop], ...], ...]}

The directory may be one of a bucket, s3://BUCKET/KEY (not with zarrs), with the endpoint, the keys and the region that
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION name.

For each one line is printed, the checksum of all values (or those of the regions, one after the other),
or the library's reason not to read it:

    {"id": ..., "sha256": ..., "shape": ..., "seconds": ...}
    {"id": ..., "error": ...}

Values are hashed in C order, little endian; strings as length and UTF-8.
"""
import hashlib
import json
import os
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")


def little_endian(values):
    """The bytes of the values, the same whichever library and whatever byte order they came from."""
    values = np.asarray(values)
    if values.dtype.kind in "OTU":
        texts = [str(v).encode() for v in values.ravel()]
        return b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    return np.ascontiguousarray(values).tobytes()


def bucket_and_key(path):
    """Those of an s3:// URL, or nothing."""
    return path.removeprefix("s3://").partition("/")[::2] if path.startswith("s3://") else None


def open_zarr_python(path):
    import zarr

    if at := bucket_and_key(path):
        from obstore.store import S3Store

        options = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "client_options": {"allow_http": True}}
        path = zarr.storage.ObjectStore(S3Store(at[0], prefix=at[1], **options), read_only=True)
    return zarr.open_array(path, mode="r")


def open_zarrs(path):
    """zarr-python with the codecs and the file access of zarrs; strict: never falls back to Python."""
    import zarr
    import zarrs  # noqa: F401

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True})
    return zarr.open_array(path, mode="r")


class TensorStore:
    """Opened with the codecs and chunk shape of zarr.json as it is there, as constraints."""

    def __init__(self, path):
        import tensorstore

        if at := bucket_and_key(path):
            kvstore = {"driver": "s3", "bucket": at[0], "path": at[1] + "/", "aws_region": os.environ["AWS_REGION"],
                       "endpoint": os.environ["AWS_ENDPOINT_URL"]}
        else:
            kvstore = {"driver": "file", "path": os.path.normpath(path) + "/"}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        metadata = json.loads(tensorstore.KvStore.open(kvstore).result().read("zarr.json").result().value)
        spec["metadata"] = {k: metadata[k] for k in ("codecs", "chunk_grid")}
        self.array = tensorstore.open(spec, open=True, create=False, read=True, write=False).result()
        self.sharded = "sharding_indexed" in json.dumps(self.array.spec().to_json())
        layout = self.array.chunk_layout
        # What an unsharded array is to TensorStore: it writes what it reads.
        self.sharded |= layout.read_chunk.shape != layout.write_chunk.shape
        self.shape = self.array.shape

    def __getitem__(self, where):
        # The domain of an array is all of it; "..." would be a new dimension for rank 0.
        view = self.array if where is ... else self.array[where]
        return view.read().result()


OPEN = {"zarr-python": open_zarr_python, "zarrs": open_zarrs, "tensorstore": TensorStore}


def read(library, job):
    array = OPEN[library](job["path"])
    digest = hashlib.sha256()
    if job["regions"] is None:
        digest.update(little_endian(array[...]))
    else:
        for region in job["regions"]:
            digest.update(little_endian(array[tuple(slice(a, b) for a, b in region)]))
    result = {"sha256": digest.hexdigest(), "shape": list(array.shape)}
    if library == "tensorstore":
        result["sharded"] = array.sharded
    return result


def main():
    library, jobs = sys.argv[1:]
    with open(jobs) as f:
        jobs = [json.loads(line) for line in f]
    for job in jobs:
        start = time.monotonic()
        try:
            result = read(library, job)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            text = " ".join(str(error).split())
            result = {"error": f"{type(error).__name__}: {text}"[:300]}
        result["seconds"] = round(time.monotonic() - start, 4)
        print(json.dumps({"id": job["id"], **result}), flush=True)
    # Threads of obstore that still run let Python abort at its end now and then.
    os._exit(0)


if __name__ == "__main__":
    main()
