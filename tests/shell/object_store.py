#!/usr/bin/env python3
"""What object_store.sh and azure.sh do with a store, and who reads there meanwhile.

    object_store.py buckets PUBLIC PRIVATE           makes two buckets; anyone may read and list the first. A third one,
                                                     "unlisted", anyone may read
    object_store.py upload BUCKET PREFIX DIR         every regular file below DIR, as PREFIX and its path
    object_store.py jobs CORPUS BUCKET MOUNT OUT     arrays for read_array: OUT/jobs (of a bucket and its mount),
                                                     OUT/web-jobs (of the web server that is the bucket, and its mount)
    object_store.py compare OUT                      one line for each array and library
    object_store.py array DIR                        an array whose chunks all differ
    object_store.py watch MOUNT SECONDS STOP READ    reads the mount of this array until there is a file STOP; no call
                                                     may take longer than SECONDS; makes a file READ when it has read
    object_store.py all MOUNT                        reads every chunk of it
    object_store.py replace BUCKET KEY MOUNT COUNT   replaces a shard of the mounted array under its readers

    object_store.py signatures CONTAINER             two of Azure that allow reading and listing: one that is valid, and
                                                     one that has expired

The store is the one that AWS_ENDPOINT_URL names, or of Azure, AZURE_STORAGE_ENDPOINT, with the keys of the environment.
"""
import collections
import concurrent.futures
import datetime
import json
import os
import random
import struct
import sys
import threading
import time
from pathlib import Path

import shards

# --- the store -------------------------------------------------------------------------------------


# A bucket whose objects anyone may read who knows their keys.
UNLISTED = "unlisted"


class S3:
    def __init__(self):
        import boto3

        self.client = boto3.client("s3")

    def buckets(self, public, private):
        allowed = {public: ["s3:GetObject", "s3:ListBucket"], private: [], UNLISTED: ["s3:GetObject"]}
        for bucket, actions in allowed.items():
            self.client.create_bucket(Bucket=bucket)
            if actions:
                self.client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [{
                    "Effect": "Allow", "Principal": "*", "Action": actions,
                    "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]}]}))

    def put(self, bucket, key, body):
        self.client.put_object(Bucket=bucket, Key=key, Body=body)


class Azure:
    def __init__(self):
        from azure.storage.blob import BlobServiceClient

        self.key = os.environ["AZURE_STORAGE_ACCOUNT_KEY"]
        self.client = BlobServiceClient(os.environ["AZURE_STORAGE_ENDPOINT"], credential=self.key)

    def buckets(self, public, private):
        self.client.create_container(public, public_access="container")
        self.client.create_container(private)
        self.client.create_container(UNLISTED, public_access="blob")

    def put(self, bucket, key, body):
        self.client.get_blob_client(bucket, key).upload_blob(body, overwrite=True)

    def signatures(self, container):
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        for hours in (1, -1):
            print(generate_container_sas(
                self.client.account_name, container, account_key=self.key, expiry=now + datetime.timedelta(hours=hours),
                permission=ContainerSasPermissions(read=True, list=True)))


def client():
    return Azure() if "AZURE_STORAGE_ENDPOINT" in os.environ else S3()


def buckets(public, private):
    client().buckets(public, private)


def signatures(container):
    client().signatures(container)


def upload(bucket, prefix, top):
    store = client()

    def put(path):
        with open(path, "rb") as f:
            store.put(bucket, prefix + os.path.relpath(path, top), f.read())

    paths = [os.path.join(base, name) for base, _, names in os.walk(top) for name in names]
    regular = [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(put, regular))


# --- libraries -------------------------------------------------------------------------------------

# One array of each kind: codecs, ranks, types, keys, where the index is, shards in shards, no shards at all.
CASES = """
zarrpy/r2_i2_gzip zarrpy/r2_u2_zstd_crc_start zarrpy/r3_f4_blosc_lz4_shuffle zarrpy/r3_u4_blosc_zstd_bitshuffle_nocrc
zarrpy/r2_u2_nested zarrpy/r2_u2_outer_gzip zarrpy/r2_u2_transpose_before zarrpy/r4_i8_big_endian
zarrpy/r5_bool_gzip_v2slash zarrpy/r1_i4_v2dot zarrpy/r2_u1_sparse_huge zarrpy/r2_u1_never_written zarrpy/grp__sub_deep_x
zarrpy/image3d__s1 tensorstore/ts_r2_u2_start_sparse tensorstore/ts_r3_f4_nested tensorstore/ts_r0_sharded
zarrs/rs_r3_i2_nested zarrs/rs_r2_f4_partial_start zarritajs/js_v3_fill ngffzarr/ngff_2d__scale0_image
""".split()

# Shards that a library cannot read, or gets wrong, wherever they are; through the mount it can.
AT_START = "index at the start"
NESTED = "shards in shards"
UNREAD = {
    "tensorstore": {"zarrpy/r2_u2_outer_gzip": "codec after sharding_indexed"},
    "zarrita.js": {
        "zarrpy/grp__sub_deep_x": AT_START,
        "zarrpy/r2_u2_nested": NESTED,
        "zarrpy/r2_u2_outer_gzip": AT_START,
        "zarrpy/r2_u2_transpose_before": "transpose before sharding_indexed",
        "zarrpy/r2_u2_zstd_crc_start": AT_START,
        "tensorstore/ts_r2_u2_start_sparse": AT_START,
        "tensorstore/ts_r3_f4_nested": NESTED,
        "zarrs/rs_r2_f4_partial_start": AT_START,
        "zarrs/rs_r3_i2_nested": NESTED,
    },
}


def jobs(corpus, bucket, mount, out):
    sys.path.append(os.path.join(os.path.dirname(__file__), "../clients"))
    import cases

    where = {"view": mount, "bucket": "s3://" + bucket, "web": f"{os.environ['AWS_ENDPOINT_URL']}/{bucket}"}
    lines = collections.defaultdict(list)
    found = [m for m in cases.manifests(corpus) if m["case"] in CASES]
    assert len(found) == len(CASES), "an array is not in the corpus"
    for m in found:
        for name, root in where.items():
            path = "/".join(filter(None, (root, m["store"], m["node"])))
            line = json.dumps({"id": f"{name}:{m['case']}", "path": path, "regions": cases.regions(m)})
            for file in {"view": ("jobs", "web-jobs"), "bucket": ("jobs",), "web": ("web-jobs",)}[name]:
                lines[file].append(line)
    for file, content in lines.items():
        with open(os.path.join(out, file), "w") as f:
            f.writelines(line + "\n" for line in content)


def compare(out):
    found = {}
    for library in ("zarr-python", "tensorstore", "zarrita.js"):
        with open(os.path.join(out, library + ".out")) as f:
            for row in map(json.loads, f):
                found[library, row["id"]] = row.get("sha256") or row["error"]
    for case in CASES:
        # zarr-python reads all of them in the bucket.
        want = found.get(("zarr-python", f"bucket:{case}"))
        for library, direct in (("zarr-python", "bucket"), ("tensorstore", "bucket"), ("zarrita.js", "web")):
            unread = UNREAD.get(library, {}).get(case)
            ways = ("view",) if unread else ("view", direct)
            wrong = [f"{way}: {got}" for way in ways if (got := found.get((library, f"{way}:{case}"))) != want]
            if wrong:
                print(f"FAIL {library} {case}: {'; '.join(wrong)}, expected {want}")
            else:
                print(f"ok   {library} {case}{f' (not without the mount: {unread})' if unread else ''}")


# --- an array that is read while something happens ---------------------------------------------------

SHARDS, CHUNKS, NBYTES = 16, 4, 256 << 10
PIECE = 64 << 10


def shard(chunks, gap=0):
    """A shard of these chunks, as shards.py makes it of equal ones."""
    entries, body = [], bytearray(gap)
    for chunk in chunks:
        entries += [len(body), len(chunk)]
        body += chunk
    index = struct.pack(f"<{len(entries)}Q", *entries)
    return bytes(body) + index + struct.pack("<I", shards.crc32c(index))


def content(number):
    """The bytes of a chunk, each of its pieces another one."""
    return b"".join(struct.pack("<II", number, piece) * (PIECE // 8) for piece in range(NBYTES // PIECE))


class Arguments:
    shards, chunks, bytes, start = SHARDS, CHUNKS, NBYTES, False


def array(path):
    os.makedirs(os.path.join(path, "c"))
    with open(os.path.join(path, "zarr.json"), "w") as f:
        json.dump(shards.metadata(Arguments), f)
    for number in range(SHARDS):
        with open(os.path.join(path, "c", str(number)), "wb") as f:
            f.write(shard([content(number * CHUNKS + slot) for slot in range(CHUNKS)]))


def read_pieces(fd):
    """The pieces of a file one by one, as far as the kernel has not kept any."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    offset = 0
    while piece := os.pread(fd, PIECE, offset):
        yield piece
        offset += len(piece)


def read_all(mount):
    for number in range(SHARDS * CHUNKS):
        with open(os.path.join(mount, "c", str(number)), "rb") as f:
            assert f.read() == content(number), f"chunk {number} is not right"
    print(f"{SHARDS * CHUNKS} chunks are right")


class Watcher:
    """Readers of random chunks, and what became of them."""

    def __init__(self, mount, read):
        self.mount, self.outcomes, self.longest, self.wrong = mount, collections.Counter(), 0, []
        self.read_file = Path(read)

    def call(self, function, *args):
        """One call of the system, timed."""
        start = time.monotonic()
        try:
            return function(*args)
        finally:
            self.longest = max(self.longest, time.monotonic() - start)

    def read(self, number):
        fd = self.call(os.open, os.path.join(self.mount, "c", str(number)), os.O_RDONLY)
        try:
            pieces = read_pieces(fd)
            got = b""
            while piece := self.call(next, pieces, b""):
                got += piece
        finally:
            os.close(fd)
        if got != content(number):
            self.wrong.append(f"chunk {number}: {len(got)} bytes, {got[:8].hex()}...")

    def list(self):
        names = self.call(os.listdir, os.path.join(self.mount, "c"))
        if len(names) != SHARDS * CHUNKS:
            self.wrong.append(f"a listing of {len(names)} names")

    def run(self, stop, seed):
        numbers = random.Random(seed)
        while not os.path.exists(stop):
            try:
                if numbers.randrange(10):
                    self.read(numbers.randrange(SHARDS * CHUNKS))
                else:
                    self.list()
                self.outcomes["right"] += 1
                self.read_file.touch()
            except OSError as error:
                self.outcomes[error.strerror] += 1
                if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    self.wrong.append(f"shown as absent: {error}")


def watch(mount, seconds, stop, read):
    watcher = Watcher(mount, read)
    threads = [threading.Thread(target=watcher.run, args=(stop, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{dict(watcher.outcomes)}, longest call {watcher.longest:.1f} s")
    assert not watcher.wrong, watcher.wrong[:5]
    assert watcher.longest < float(seconds), "a call took too long"
    assert watcher.outcomes["right"] and len(watcher.outcomes) > 1, "nothing has happened"


# --- a shard that is replaced ------------------------------------------------------------------------


class Replaced:
    """Readers of the chunks of the first shard, all bytes of which are the number of its version."""

    def __init__(self, mount):
        self.mount, self.outcomes, self.versions, self.mixed = mount, collections.Counter(), set(), []
        self.done = threading.Event()

    def read(self, slot, before, between):
        """Reads a chunk through one descriptor, with pauses of up to so many seconds. Returns its version."""
        fd = os.open(os.path.join(self.mount, "c", str(slot)), os.O_RDONLY)
        try:
            time.sleep(random.random() * before)
            seen, nbytes = set(), 0
            for piece in read_pieces(fd):
                seen |= set(piece)
                nbytes += len(piece)
                time.sleep(random.random() * between)
        finally:
            os.close(fd)
        if len(seen) != 1 or nbytes != NBYTES:
            self.mixed.append(f"chunk {slot}: {nbytes} bytes of the versions {sorted(seen)}")
        return min(seen)

    def run(self, slot, before, between):
        while not self.done.wait(0.002):
            try:
                self.versions.add(self.read(slot, before, between))
                self.outcomes["right"] += 1
            except OSError as error:
                self.outcomes[error.strerror] += 1
                if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    self.mixed.append(f"shown as absent: {error}")

    def have_read(self, version):
        """One of the readers has read this version, which stays until then."""
        end = time.monotonic() + 120
        while version not in self.versions:
            assert time.monotonic() < end, f"version {version} is not read: {dict(self.outcomes)}"
            time.sleep(0.01)

    def shows(self, version):
        """All chunks are of this version, at some time in the next seconds."""
        end = time.monotonic() + 10
        while True:
            try:
                found = [self.read(slot, 0, 0) for slot in range(CHUNKS)]
            except OSError as error:
                found = error
            if found == [version] * CHUNKS:
                break
            assert time.monotonic() < end, f"{found} is shown, {version} has long been there"
            time.sleep(0.1)


def replace(bucket, key, mount, count):
    store, count, readers = client(), int(count), Replaced(mount)
    assert count < 255, "versions are bytes"

    def put(version):
        chunks = [bytes([version]) * NBYTES] * CHUNKS
        store.put(bucket, key, shard(chunks, version * 4099 % 100_000))

    # Pauses of readers: none, before they read, while they read.
    pauses = [(0, 0), (0.05, 0), (0, 0.02), (0.02, 0.02)]
    threads = [threading.Thread(target=readers.run, args=(slot, *pause)) for slot, pause in enumerate(pauses)]
    put(1)
    readers.shows(1)
    for thread in threads:
        thread.start()
    try:
        for version in range(2, count + 2):
            put(version)
            time.sleep(random.random() * 0.06)
            if version % 10 == 0:
                readers.have_read(version)
        readers.shows(count + 1)
    finally:
        readers.done.set()
    for thread in threads:
        thread.join()
    print(f"{dict(readers.outcomes)}, {len(readers.versions)} versions")
    assert not readers.mixed, readers.mixed[:5]
    assert len(readers.versions) > count / 10 - 1, "hardly anything was read"


if __name__ == "__main__":
    {"buckets": buckets, "upload": upload, "jobs": jobs, "compare": compare, "array": array, "watch": watch,
     "all": read_all, "replace": replace, "signatures": signatures}[sys.argv[1]](*sys.argv[2:])
