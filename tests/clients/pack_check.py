#!/usr/bin/env python3
"""Arrays of the corpus unpacked, packed and repacked: what pack.sh checks.

    pack_check.py make CORPUS OUT SHARDFS      runs shardfs; one line per array; writes OUT/jobs
    pack_check.py compare CORPUS OUT           judges what read_array.py printed, OUT/<library>.out

Every array is unpacked; its files must be the chunks of its manifest.  It is packed again, into shards of
another shape, and repacked in each order and with the index in each place, in place and to a copy.  Each
time shardfs prints a digest of the encoded chunks, which must stay the same.
"""
import hashlib
import json
import os
import subprocess
import sys

import cases

LIBRARIES = ("zarr-python", "tensorstore")
ORDERS = ("c", "f", "morton")


def run(shardfs, *arguments, code=0):
    """What a command prints as JSON."""
    done = subprocess.run([shardfs, *arguments, "--json"], capture_output=True, text=True)
    if done.returncode != code:
        raise AssertionError(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[:500]}")
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr


def digest(result):
    (array,) = result["arrays"]
    return array["digest"], array["chunks"], array["nbytes"]


def check_files(manifest, directory):
    """The files below a directory are the chunks of the innermost level, and nothing else."""
    chunks = {c["key"]: c for c in manifest["levels"][-1]["chunks"]
              if c["present"] and not c.get("beyond_grid")}
    found = set()
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            key = os.path.relpath(path, directory)
            if key == "zarr.json":
                continue
            found.add(key)
            with open(path, "rb") as f:
                data = f.read()
            assert key in chunks, f"{key} is no chunk"
            want = chunks[key]
            assert hashlib.sha256(data).hexdigest() == want["sha256"], f"{key} differs"
    missing = {key for key in chunks if not chunks[key].get("quirk")} - found
    assert not missing, f"missing: {sorted(missing)[:5]}"


def check_metadata(manifest, directory):
    with open(os.path.join(directory, "zarr.json")) as f:
        text = f.read()
    assert "sharding_indexed" not in text, "the unpacked array is sharded"
    grid = json.loads(text)["chunk_grid"]["configuration"]["chunk_shape"]
    assert grid == manifest["levels"][-1]["chunk_shape"], f"chunk shape {grid}"


def compressed_as_a_whole(document):
    codecs = document["codecs"]
    names = [c if isinstance(c, str) else c["name"] for c in codecs]
    if "sharding_indexed" not in names:
        return False
    at = names.index("sharding_indexed")
    inner = codecs[at]["configuration"]
    return any(name != "crc32c" for name in names[at + 1:]) or compressed_as_a_whole(inner)


def one(shardfs, corpus, out, manifest):
    case = manifest["case"].replace("/", "__")
    source = os.path.join(corpus, manifest["store"], manifest["node"])
    here = os.path.join(out, case)
    os.mkdir(here)
    at = lambda name: os.path.join(here, name)  # noqa: E731
    before = tree(source)

    expected = digest(run(shardfs, "unpack", source, at("unpacked")))
    check_files(manifest, at("unpacked"))
    check_metadata(manifest, at("unpacked"))

    chunk = manifest["levels"][-1]["chunk_shape"]
    shard = ",".join(str((2, 3, 1)[i % 3] * n or 1) for i, n in enumerate(chunk))
    arguments = ["--shard", shard] if chunk else ["--shard", ""]
    if 0 in chunk:
        return "no chunks", []
    packed = digest(run(shardfs, "pack", at("unpacked"), at("packed"), *arguments))
    assert packed == expected, f"packed {packed}, {expected} before"
    for order in ORDERS:
        result = run(shardfs, "repack", at("packed"), "--order", order)
        again = run(shardfs, "repack", at("packed"), "--order", order)
        assert again["arrays"][0]["shards_rewritten"] == 0, f"{order} was written twice: {result} {again}"
    assert digest(run(shardfs, "pack", source, at("direct"), *arguments, "--index", "start")) == expected
    variants = ["packed", "direct"]
    with open(os.path.join(source, "zarr.json")) as f:
        document = json.loads(f.read())
    if compressed_as_a_whole(document) or "sharding_indexed" not in json.dumps(document["codecs"]):
        run(shardfs, "repack", source, at("repacked"), code=2)
    else:
        for number, order in enumerate(ORDERS):
            name = f"repacked-{order}"
            where = ("start", "end")[number % 2]
            extra = ["--dedup"] if order == "f" else []
            result = run(shardfs, "repack", source, at(name), "--order", order, "--index", where, *extra)
            assert digest(result) == expected, f"{name} {digest(result)}, {expected} before"
            variants.append(name)
    assert digest(run(shardfs, "unpack", at(variants[-1]), at("again"))) == expected
    assert tree(at("again")) == tree(at("unpacked")), "unpacked again it is another"
    assert tree(source) == before, "the source was changed"
    return f"{expected[1]} chunks", variants


def tree(directory):
    found = {}
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            with open(path, "rb") as f:
                found[os.path.relpath(path, directory)] = hashlib.sha256(f.read()).hexdigest()
    return found


def make(corpus, out, shardfs):
    jobs = []
    for manifest in cases.manifests(corpus):
        try:
            words, variants = one(shardfs, corpus, out, manifest)
        except AssertionError as error:
            print(f"FAIL {manifest['case']}: {' '.join(str(error).split())[:800]}", flush=True)
            continue
        print(f"ok   {manifest['case']}: {words}", flush=True)
        where = cases.regions(manifest)
        paths = {"source": os.path.join(corpus, manifest["store"], manifest["node"])}
        for name in variants:
            paths[name] = os.path.join(out, manifest["case"].replace("/", "__"), name)
        for name, path in paths.items():
            jobs.append({"id": f"{name}:{manifest['case']}", "path": path, "regions": where})
    with open(os.path.join(out, "jobs"), "w") as f:
        f.writelines(json.dumps(job) + "\n" for job in jobs)


def compare(corpus, out):
    """What the libraries read of each form is what they read of the source, or of the others."""
    sums = {}
    for library in LIBRARIES:
        with open(os.path.join(out, library + ".out")) as f:
            for line in f:
                row = json.loads(line)
                name, case = row["id"].split(":", 1)
                sums.setdefault(case, {})[library, name] = row
    for manifest in cases.manifests(corpus):
        case = manifest["case"]
        rows = sums.get(case, {})
        right = {row["sha256"] for (_, name), row in rows.items() if "sha256" in row and name == "source"}
        for (library, name), row in sorted(rows.items()):
            if name == "source":
                continue
            if "sha256" in row and len(right | {row["sha256"]}) == 1:
                print(f"ok   {library} {case} {name}")
            elif "error" in row and ("error" in rows[library, "source"] or case in cases.REFUSED[library]):
                print(f"skipped: {library} {case} {name}: {row['error'][:100]}")
            else:
                print(f"FAIL {library} {case} {name}: {row.get('error', 'other values')}")


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
