"""What zarr 2 should read of a view: the jobs of zarr2_read.py."""
import hashlib
import json
import os

import numpy as np

from read_array import little_endian

from .expected import from_manifest, from_source, has_v2_form
from .files import sha256
from .many import made_names, manifest_paths, views_of


def source_digest(expected, dump):
    """Of all values, or of some boxes; as zarr-python 3 reads them, or as the corpus has them.  Values that it has
    read go into the file `dump`, for better words."""
    try:
        if expected.regions is None:
            values = np.asarray(expected.array[...])
            if values.dtype.kind not in "OTU":
                np.save(dump, values)
            return sha256(little_endian(values))
        digest = hashlib.sha256()
        for box in expected.regions:
            digest.update(little_endian(expected.array[tuple(slice(a, b) for a, b in box)]))
        return digest.hexdigest()
    except Exception:
        if expected.assembled is None:
            raise
        return expected.assembled


def job(name, expected, path, out, number):
    try:
        return described(name, expected, path, out, number)
    except Exception as error:
        return {"id": name, "unread": f"nobody reads the source: {type(error).__name__}: {error}"[:200]}


def described(name, expected, path, out, number):
    dump = f"{out}.{number}.npy"
    metadata = expected.metadata
    dims = metadata.get("dimension_names") or []
    fill = None
    if expected.dtype is not None and metadata["fill_value"] is not None:
        fill = expected.fill(()).hex()
    return {"id": name, "path": path, "regions": expected.regions,
            "sha256": source_digest(expected, dump), "dump": dump,
            "shape": expected.shape, "chunks": expected.chunk_shape,
            "fill": fill, "fill_is_null": metadata["fill_value"] is None,
            "attributes": metadata.get("attributes") or {},
            "dimensions": dims if dims and all(isinstance(d, str) for d in dims) else None,
            "must": has_v2_form(metadata)}


def groups_of(source, view):
    for base, directories, files in os.walk(source):
        if "zarr.json" in files:
            with open(os.path.join(base, "zarr.json")) as f:
                document = json.load(f)
            if document["node_type"] == "group":
                inside = os.path.relpath(base, source)
                yield {"id": f"group {os.path.basename(source)}/{'' if inside == '.' else inside}",
                       "group": os.path.normpath(os.path.join(view, inside)),
                       "attributes": document.get("attributes") or {},
                       "consolidated": document.get("consolidated_metadata") is not None}
            else:
                directories.clear()


def write_jobs(lines, out):
    with open(out, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def jobs(options):
    views, lines = views_of(options.views), []
    for number, (path, store, node) in enumerate(manifest_paths(options.corpus)):
        expected = from_manifest(path)
        if store in views:
            top = os.path.join(views[store], node).rstrip("/")
            lines.append(job(expected.name, expected, top, options.out, number))
    for store, view in views.items():
        lines += groups_of(os.path.join(options.corpus, store), view)
    write_jobs(lines, options.out)


def made_jobs(options):
    lines = []
    for number, name in enumerate(made_names(options.source)):
        path = os.path.normpath(os.path.join(options.source, name))
        lines.append(job(f"{os.path.basename(options.source)}/{name}", from_source(path),
                         os.path.normpath(os.path.join(options.view, name)), options.out, number))
    write_jobs(lines + list(groups_of(options.source, options.view)), options.out)
