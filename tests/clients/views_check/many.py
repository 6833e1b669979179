"""All arrays of the corpus, of a source, of two views."""
import glob
import json
import os

import cases

from .decoded import check_decoded
from .documents import is_filled2
from .expected import from_manifest, from_source, separator_of
from .files import first_difference, listed
from .flat import check_flat
from .results import Differences, attempt


def check(expected, top, options):
    return (check_flat if options.form == "flat" else check_decoded)(expected, top, options)


def views_of(path):
    with open(path) as f:
        return dict(line.rstrip("\n").split("\t") for line in f)


def manifest_paths(corpus):
    for family in cases.PUBLIC:
        for path in sorted(glob.glob(os.path.join(corpus, "manifests", family, "*.json"))):
            with open(path) as f:
                manifest = json.load(f)
            yield path, manifest["store"], manifest["node"]


def title(options):
    said = [v for v in (options.endian, options.edge, options.missing) if v in ("big", "clip", "fill")]
    return " ".join([options.form, *said])


def corpus(options):
    views = views_of(options.views)
    for path, store, node in manifest_paths(options.corpus):
        # A store that could not be mounted has been reported.
        if store not in views:
            continue

        def work(path=path, store=store, node=node):
            return check(from_manifest(path), os.path.join(views[store], node).rstrip("/"), options)

        attempt(f"{title(options)} {os.path.relpath(path, os.path.join(options.corpus, 'manifests'))[:-5]}", work)


def made_names(source):
    # The hidden one is a journal, if there is any.
    for base, directories, files in os.walk(source):
        directories[:] = sorted(d for d in directories if not d.startswith("."))
        if "zarr.json" in files:
            with open(os.path.join(base, "zarr.json")) as f:
                if json.load(f)["node_type"] == "array":
                    directories[:] = []
                    yield os.path.relpath(base, source)


def made(options):
    for name in made_names(options.source):
        def work(name=name):
            top = os.path.normpath(os.path.join(options.view, name))
            return check(from_source(os.path.normpath(os.path.join(options.source, name))), top, options)

        attempt(f"{title(options)} {name}", work)


def same(options):
    """Below two directories; keys of v3 begin with "c", keys of v2 do not."""
    documents = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
    problems, count = [], 0
    for name in made_names(options.zarr3):
        ours, theirs = (os.path.normpath(os.path.join(top, name)) for top in (options.zarr3, options.zarr2))
        if not os.path.exists(os.path.join(theirs, ".zarray")):
            continue
        with open(os.path.join(ours, "zarr.json")) as f:
            metadata = json.load(f)
        encoding = metadata["chunk_key_encoding"]
        prefix = "c" + separator_of(encoding) if encoding["name"] == "default" else ""
        found = set(listed(theirs)) - documents
        for key in listed(ours):
            if key in documents:
                continue
            other = "0" if not metadata["shape"] else key.removeprefix(prefix)
            if other not in found:
                problems.append(f"{name}/{other}: not listed")
                continue
            found.remove(other)
            with open(os.path.join(ours, key), "rb") as a, open(os.path.join(theirs, other), "rb") as b:
                problem = first_difference(b.read(), a.read())
            if problem:
                problems.append(f"{name}/{other}: {problem}")
            count += 1
        if not is_filled2(metadata, theirs):
            problems += [f"{name}/{other}: listed, but should not be" for other in sorted(found)]
    if problems or not count:
        raise Differences(problems or ["nothing to compare"])
    print(f"{count} chunk files are equal")
