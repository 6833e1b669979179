#!/usr/bin/env python3
"""What a mount of a bucket is compared with, and readers of chunk files; started by remote.py, each in a
process of its own, which begins without connections.
usage: remote_readers.py READER JSON      (the arguments; prints what came out as JSON)

The time begins when the library is loaded, its client set up and the array's metadata read, and ends
when the data is there. A CRC-32 of the data is for the caller to compare."""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable

BUFFER = 1 << 20


def each(read: Callable, wanted: Iterable) -> dict:
    """One after the other, and how long each takes."""
    seconds, crc = [], 0
    for item in wanted:
        start = time.perf_counter()
        data = read(item)
        seconds.append(time.perf_counter() - start)
        crc = zlib.crc32(data, crc)
    return {"seconds": seconds, "crc32": crc}


def s3_client(endpoint: str):
    import boto3
    from botocore.config import Config
    return boto3.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))


def boto3_download(endpoint: str, bucket: str, files: dict[str, str]) -> dict:
    """Objects into files. Of several objects as of one, ten parts of 8 MiB are under way: aws s3 cp
    does the same."""
    client = s3_client(endpoint)
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    start = time.perf_counter()
    if len(files) == 1:
        [(key, path)] = files.items()
        client.download_file(bucket, key, path)
    else:
        with create_transfer_manager(client, TransferConfig()) as transfers:
            downloads = [transfers.download(bucket, key, path) for key, path in files.items()]
            for download in downloads:
                download.result()
    return {"seconds": time.perf_counter() - start}


def tensorstore_array(endpoint: str, bucket: str, path: str):
    import tensorstore
    # Indexes are kept and believed, as in a mount.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
    return tensorstore.open({
        "driver": "zarr3", "recheck_cached_data": "open",
        "kvstore": {"driver": "s3", "bucket": bucket, "path": f"{path}/", "endpoint": endpoint,
                    "aws_region": "us-east-1", "aws_credentials": {"type": "environment"}},
    }, open=True, context=context).result()


def tensorstore_region(endpoint: str, bucket: str, path: str, first: int, last: int) -> dict:
    """A part of the array, along its first axis, into memory."""
    array = tensorstore_array(endpoint, bucket, path)
    start = time.perf_counter()
    data = array[first:last].read().result()
    return {"seconds": time.perf_counter() - start, "crc32": zlib.crc32(data)}


def tensorstore_chunks(endpoint: str, bucket: str, path: str, boxes: list[list[list]]) -> dict:
    """Chunks one by one. `boxes`: lists of them; an index that the first needs is there for the second."""
    array = tensorstore_array(endpoint, bucket, path)

    def read(box):
        return array[tuple(slice(*side) for side in box)].read().result().tobytes()

    return {"lists": [each(read, part) for part in boxes]}


def obstore_store(endpoint: str, bucket: str, path: str):
    from obstore.store import S3Store
    return S3Store(bucket, prefix=path, endpoint=endpoint, region="us-east-1",
                   virtual_hosted_style_request=False, client_options={"allow_http": True})


def obstore_ranges(endpoint: str, bucket: str, path: str, ranges: list[list]) -> dict:
    """GETs of ranges (key, start, end) one by one, over a connection that is there."""
    store = obstore_store(endpoint, bucket, path)
    store.get("zarr.json").bytes()
    return each(lambda part: store.get_range(part[0], start=part[1], end=part[2]), ranges)


def zarr_array(source: str | dict, threads: int) -> dict:
    """All of an array with zarr-python. `source`: a directory, or the arguments of a store."""
    import zarr
    from zarr.storage import LocalStore, ObjectStore
    zarr.config.set({"async.concurrency": threads, "threading.max_workers": threads})
    if isinstance(source, str):
        store = LocalStore(source, read_only=True)
    else:
        store = ObjectStore(obstore_store(**source), read_only=True)
    array = zarr.open_array(store, mode="r")
    start = time.perf_counter()
    data = array[...]
    return {"seconds": time.perf_counter() - start, "crc32": zlib.crc32(data)}


def chunk_files(paths: list[str]) -> dict:
    """Files one by one, as a plain program reads them."""
    def read(path: str) -> bytes:
        file = os.open(path, os.O_RDONLY)
        try:
            pieces = [os.read(file, BUFFER)]
            while len(pieces[-1]) == BUFFER:
                pieces.append(os.read(file, BUFFER))
            return b"".join(pieces)
        finally:
            os.close(file)

    return each(read, paths)


READERS = {reader.__name__: reader for reader in (
    boto3_download, tensorstore_region, tensorstore_chunks, obstore_ranges, zarr_array, chunk_files)}


if __name__ == "__main__":
    json.dump(READERS[sys.argv[1]](**json.loads(sys.argv[2])), sys.stdout)
