"""Metadata of an array in a view."""
import json
import os

from .expected import codec_names, has_v2_form, separator_of, split_codecs
from .files import listed
from .results import Skipped

METADATA = {"npy": "array.json", "raw": "array.json", "flat": "array.json"}


def compare_metadata(got, want):
    """array.json and the unsharded twin, nothing else than members that say nothing apart."""
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()
                    if not (k in ("configuration", "storage_transformers", "attributes") and not v)}
        return [plain(v) for v in value] if isinstance(value, list) else value

    def codecs(value):
        # "endian" is an older name.
        return [plain({**c, "name": c["name"].replace("endian", "bytes")} if isinstance(c, dict) else {"name": c})
                for c in value]

    for member in sorted(set(got) | set(want)):
        a, b = (codecs(d.get(member) or []) if member == "codecs" else plain(d.get(member)) for d in (got, want))
        if (a or b) and json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            yield f"{member}: {json.dumps(a)[:120]}, expected {json.dumps(b)[:120]}"


def metadata_problems(expected, top, form):
    path = os.path.join(top, METADATA[form])
    try:
        with open(path) as f:
            got = json.load(f)
    except (OSError, ValueError) as error:
        return [f"{METADATA[form]}: {error}"]
    want = dict(expected.metadata, codecs=split_codecs(expected.metadata))
    want["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(expected.chunk_shape)}}
    return [f"{METADATA[form]}: {words}" for words in compare_metadata(got, want)]


def zarr2_problems(expected, top):
    """Is it there as a v2 array?  Raises Skipped if it is there as it is stored, and may be."""
    files = os.listdir(top)
    if ".zarray" not in files and not has_v2_form(expected.metadata) and "zarr.json" in files:
        theirs, ours = listed(top), listed(expected.source)
        if theirs != ours:
            return [f"neither v2 nor as stored: {sorted(set(theirs) ^ set(ours))[:5]}"]
        for name in ours:
            with open(os.path.join(top, name), "rb") as a, open(os.path.join(expected.source, name), "rb") as b:
                if a.read() != b.read():
                    return [f"{name}: not as it is stored"]
        raise Skipped(f"shown as stored: {', '.join(codec_names(split_codecs(expected.metadata)))} "
                      f"of {expected.data_type if isinstance(expected.data_type, str) else expected.data_type['name']}")
    if ".zarray" not in files:
        return ["no .zarray"]
    with open(os.path.join(top, ".zarray")) as f:
        document = json.load(f)
    want = {"zarr_format": 2, "shape": list(expected.shape), "chunks": list(expected.chunk_shape)}
    problems = [f".zarray: {k} is {document.get(k)}, expected {v}"
                for k, v in want.items() if document.get(k) != v]
    separator = separator_of(expected.metadata["chunk_key_encoding"])
    if document.get("dimension_separator", ".") != separator:
        problems.append(f".zarray: dimension_separator is {document.get('dimension_separator')!r}, "
                        f"expected {separator!r}")
    for member in ("compressor", "fill_value", "order", "filters", "dtype"):
        if member not in document:
            problems.append(f".zarray: no {member}")
    return problems


def is_filled2(metadata, top):
    """Whether the view zarr2 shows every chunk: the fill value of an array whose dimensions have names is null."""
    try:
        with open(os.path.join(top, ".zarray")) as f:
            document = json.load(f)
    except OSError:
        return False
    named = metadata.get("dimension_names") is not None or not metadata["shape"]
    return named and document["fill_value"] is None and metadata["fill_value"] is not None


def is_hidden(expected, top):
    """The source itself must be shown as something."""
    return not os.path.lexists(top) or expected.is_source and not listed(top)
