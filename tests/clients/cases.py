#!/usr/bin/env python3
"""What run.sh reads, and what must come of it.

    cases.py jobs CORPUS MOUNTS OUT      MOUNTS: lines "store<TAB>mount point"
    cases.py compare CORPUS OUT          prints one line per array and library

`jobs` writes OUT/jobs (sources and views) and OUT/view-jobs (views only), the input of read_array.
`compare` reads what the readers printed, OUT/<library>.out.
"""
import glob
import json
import os
import sys

PUBLIC = "zarrpy zarrita_py tensorstore zarrs zarrs_pip ngffzarr crafted zarritajs".split()
LIBRARIES = ("zarr-python", "tensorstore", "zarrs", "zarrita.js")

# Arrays that a library refuses, or gets wrong, through the mount for a reason that no view can change.
# Both ways round: what is not listed must be read, what is listed and is read should be taken out.
NULL_FILL = {case: "fill_value null" for case in ("zarritajs/js_v3_dot", "zarritajs/js_v3_plain")}
REFUSED = {
    "zarr-python": NULL_FILL | {
        "tensorstore/ts_bf16": "data type bfloat16",
    },
    "tensorstore": NULL_FILL | {
        "zarrpy/r1_datetime": "data type datetime64",
        "zarrpy/r1_i4_numcodecs_lz4": "codec numcodecs.shuffle",
        "zarrpy/r1_string_vlen": "codec vlen-utf8",
    },
    "zarrs": NULL_FILL | {
        "tensorstore/ts_bf16": "data type bfloat16",
        "zarrpy/r1_datetime": "data type datetime64",
        "zarrpy/r1_i4_numcodecs_lz4": "codec numcodecs.lz4",
        "zarrpy/r1_string_vlen": "data type string",
    },
    "zarrita.js": {
        "tensorstore/ts_bf16": "data type bfloat16",
        "zarrpy/dtypes__complex64": "data type complex64",
        "zarrpy/dtypes__complex128": "data type complex128",
        "zarrpy/dtypes__float16": "data type float16, in node before 24",
        "zarrpy/r1_datetime": "data type datetime64",
        "zarrpy/r2_c8_zstd_default_dot": "data type complex64",
        "zarrpy/r2_u1_zero_size": "dimensions of length 0",
    },
}
WRONG = {
    "zarrita.js": {
        "zarrpy/r1_u8_bigfill": "rounds a fill_value of 2^64-1",
        "zarrpy/r3_u1_transpose_before_and_inner": "does one of two transpose codecs only",
    },
}
# Only these libraries read every source they do not refuse rightly, and so say what the values are.
TRUSTED = ("zarr-python", "tensorstore", "zarrs")


def manifests(corpus):
    for family in PUBLIC:
        for path in sorted(glob.glob(os.path.join(corpus, "manifests", family, "*.json"))):
            with open(path) as f:
                yield json.load(f)


def regions(manifest):
    """Where to read: None for everything, else a box around each chunk that exists."""
    size = 1
    for n in manifest["shape"]:
        size *= n
    if size <= 1 << 24:
        return None
    level = manifest["levels"][-1]
    boxes = []
    for chunk in level["chunks"]:
        if chunk["present"] and not chunk.get("beyond_grid"):
            box = []
            for i, edge, end in zip(chunk["grid"], level["chunk_shape"], manifest["shape"]):
                # 5 more on each side: a part of the neighbours, which do not exist
                box.append([max(0, i * edge - 5), min(end, (i + 1) * edge + 5)])
            boxes.append(box)
    return boxes


def write_jobs(corpus, mounts, out):
    with open(mounts) as f:
        view_of = dict(line.rstrip("\n").split("\t") for line in f)
    sources, views = [], []
    for m in manifests(corpus):
        where = regions(m)
        for name, root, jobs in (("source", os.path.join(corpus, m["store"]), sources),
                                 ("view", view_of[m["store"]], views)):
            path = os.path.join(root, m["node"]) if m["node"] else root
            jobs.append(json.dumps({"id": f"{name}:{m['case']}", "path": path, "regions": where}))
    for name, lines in (("jobs", sources + views), ("view-jobs", views)):
        with open(os.path.join(out, name), "w") as f:
            f.writelines(line + "\n" for line in lines)


def outcomes(out):
    """{(library, "source" or "view", case): what the reader printed}"""
    found = {}
    for library in LIBRARIES:
        with open(os.path.join(out, library + ".out")) as f:
            for line in f:
                row = json.loads(line)
                kind, case = row["id"].split(":", 1)
                found[library, kind, case] = row
    return found


def expected(found, case, assembled):
    """The checksum that the libraries agree on for the source, and any disagreement in words."""
    sums = {lib: found[lib, "source", case]["sha256"] for lib in TRUSTED
            if "sha256" in found.get((lib, "source", case), {})}
    if assembled:
        sums["corpus"] = assembled
    if len(set(sums.values())) > 1:
        return None, f"the source itself is read differently: {sums}"
    if not sums:
        return None, "nobody reads the source"
    return next(iter(sums.values())), None


def judge(library, case, view, want):
    """(verdict, words) for one array read through the mount by one library"""
    refused = REFUSED[library].get(case)
    wrong = WRONG.get(library, {}).get(case)
    if view is None:
        return "FAIL", "no result: the reader died"
    if "error" in view:
        if refused:
            return "skipped:", f"{refused} [{view['error'][:100]}]"
        return "FAIL", view["error"]
    if refused:
        return "FAIL", f"was read, but is listed as refused ({refused})"
    if view.get("sharded"):
        return "FAIL", "the view is a sharded array"
    if view["sha256"] != want:
        if wrong:
            return "skipped:", wrong
        return "FAIL", f"values differ: {view['sha256'][:16]}, source {want[:16]}"
    if wrong:
        return "FAIL", f"values are right, but listed as wrong ({wrong})"
    return "ok", ""


def compare(corpus, out):
    found = outcomes(out)
    for m in manifests(corpus):
        case = m["case"]
        want, problem = expected(found, case, m["crosscheck"].get("assembled_sha256"))
        if problem:
            print("FAIL", f"{case}: {problem}")
            continue
        for library in LIBRARIES:
            verdict, words = judge(library, case, found.get((library, "view", case)), want)
            # Said on purpose: these are the arrays that a mount opens to a library.
            if verdict == "ok" and "error" in found.get((library, "source", case), {}):
                words = "(refused when sharded)"
            print(f"{verdict:<4} {library} {case}{': ' if verdict != 'ok' else ' '}{words}".rstrip())


if __name__ == "__main__":
    {"jobs": write_jobs, "compare": compare}[sys.argv[1]](*sys.argv[2:])
