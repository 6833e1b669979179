"""ZIP archives of a directory, as programs write them, and as none should.

    zip.py HOW DIRECTORY ARCHIVE [TOP]     entries are named by their paths below DIRECTORY, with TOP/ before them
"""

import io
import os
import sys
import warnings
import zipfile

how, directory, archive, *top = sys.argv[1:]
top = "".join(f"{name}/" for name in top)
files = sorted(
    os.path.relpath(os.path.join(where, name), directory) for where, _, names in os.walk(directory) for name in names
)


def content(name):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


METHODS = {"deflated": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2}


class Unseekable(io.RawIOBase):
    """What has to be told the lengths of an entry behind it."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def add(out, **options):
    for name in files:
        out.writestr(top + name, content(name), **options)


if how == "streamed":
    with open(archive, "wb") as file, zipfile.ZipFile(Unseekable(file), "w") as out:
        add(out)
else:
    if how == "appended":
        with open(archive, "w") as file:
            file.write("#!/bin/sh\n")
    with zipfile.ZipFile(archive, "a") as out:
        if how == "zip64":
            for name in files:
                with out.open(top + name, "w", force_zip64=True) as entry:
                    entry.write(content(name))
        elif how == "directories":
            out.writestr(zipfile.ZipInfo(top or "empty/"), b"")
            add(out)
        elif how == "comment":
            add(out)
            out.comment = b"a comment" * 1000
        elif how == "twice":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for name in files:
                    out.writestr(top + name, b"older")
                add(out)
        elif how == "leads-out":
            add(out)
            out.writestr("a/../../b", b"no")
        elif how == "bomb":
            add(out)
            out.writestr("a/zeros", bytes(300 << 20), compress_type=zipfile.ZIP_DEFLATED)
        else:
            add(out, compress_type=METHODS.get(how, zipfile.ZIP_STORED))
