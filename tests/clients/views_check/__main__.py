"""Compares views of `shardfs mount --view` with the source.  Runs with zarr-python 3, TensorStore and NumPy:
PYTHONPATH=tests/clients python -m views_check ...

One array (exit code 1 and one line for each difference, or one line "ok"):

    views_check decoded EXPECTED ARRAY --form zarr2|npy|raw [options]
    views_check flat SOURCE ARRAY [--endian big]

EXPECTED is a manifest of the corpus, or the directory of the array in its source.  ARRAY is the array's directory in
the view.  The options are those of the mount: --endian little|big, --edge full|clip, --missing absent|fill.

Many at once (a line "ok ...", "FAIL ..." or "skipped: ..." for each):

    views_check corpus CORPUS VIEWS --form zarr2|npy|raw|flat [options]   VIEWS: lines "store<TAB>directory"
    views_check made SOURCE VIEW --form zarr2|npy|raw|flat [options]      the arrays of `make`
    views_check jobs CORPUS VIEWS OUT                                     what zarr2_read.py reads of the corpus
    views_check made-jobs SOURCE VIEW OUT                                 and of the arrays of `make`

Arrays to look at, and to write to in views_write.py:

    views_check make DIR            arrays.zarr, huge.zarr, netcdf.zarr, dataset.zarr
    views_check same ZARR3 ZARR2    the chunk files of the two views are equal, byte for byte
"""
import argparse
import os
import sys

from .decoded import check_decoded
from .expected import from_manifest, from_source
from .flat import check_flat
from .jobs import jobs, made_jobs
from .made import make
from .many import corpus, made, same
from .results import Differences, one


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, *arguments, forms=None):
        found = commands.add_parser(name)
        for argument in arguments:
            found.add_argument(argument)
        if forms:
            found.add_argument("--form", choices=forms, required=True)
        found.add_argument("--endian", choices=("little", "big"), default="little")
        found.add_argument("--edge", choices=("full", "clip"), default="full")
        found.add_argument("--missing", choices=("absent", "fill"), default="absent")

    command("decoded", "expected", "array", forms=("zarr2", "npy", "raw"))
    command("flat", "source", "array")
    command("corpus", "corpus", "views", forms=("zarr2", "npy", "raw", "flat"))
    command("made", "source", "view", forms=("zarr2", "npy", "raw", "flat"))
    command("jobs", "corpus", "views", "out")
    command("made-jobs", "source", "view", "out")
    command("make", "dir")
    command("same", "zarr3", "zarr2")
    options = parser.parse_args()
    if options.command == "decoded":
        expected = (from_source if os.path.isdir(options.expected) else from_manifest)(options.expected)
        one(options, lambda: check_decoded(expected, options.array, options), expected.name)
    elif options.command == "flat":
        options.form = "flat"
        expected = (from_source if os.path.isdir(options.source) else from_manifest)(options.source)
        one(options, lambda: check_flat(expected, options.array, options), expected.name)
    elif options.command == "same":
        try:
            same(options)
        except Differences as error:
            sys.exit(str(error))
    else:
        {"corpus": corpus, "made": made, "jobs": jobs, "made-jobs": made_jobs, "make": make}[
            options.command](options)


if __name__ == "__main__":
    main()
