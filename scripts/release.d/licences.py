"""Prints what the program is linked with, and the texts of the licences.

    licences.py MUSL

MUSL is the licence of the C library. Each text is printed once, with what it came with: most packages have one of a
few.
"""

import json
import pathlib
import re
import subprocess
import sys

# Beginnings of the names of files that packages keep their licences and notices in.
NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")
# Endings of those that are none: sources, pages, and tools that check licences.
SOURCES = (".c", ".h", ".rs", ".py", ".html", ".json", ".toml", ".yml", ".sh")
OWN_TEXTS = pathlib.Path(__file__).resolve().parents[2] / "packaging/licences"


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked_packages():
    """Returns the packages of normal dependencies, for Linux, as cargo's metadata has them."""
    metadata = json.loads(
        output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-musl")
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, waiting = set(), [root]
    while waiting:
        for edge in nodes[waiting.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in edge["dep_kinds"])
            if is_linked and edge["pkg"] not in seen:
                seen.add(edge["pkg"])
                waiting.append(edge["pkg"])
    found = [packages[id] for id in seen - {root}]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def texts_of(package):
    """Yields the licences that are in a package, also those of sources in C that it brings."""
    directory = pathlib.Path(package["manifest_path"]).parent
    for path in sorted(directory.rglob("*")):
        if path.name.lower().startswith(NAMES) and path.suffix.lower() not in SOURCES and path.is_file():
            yield path.read_text(errors="replace").replace("\r\n", "\n").strip()
    if package["name"] == "blosc-src":
        yield (OWN_TEXTS / "c-blosc.txt").read_text().strip()


def parts(musl):
    """Yields a name, a licence and the texts for each part of the program."""
    yield "musl", "MIT", [pathlib.Path(musl).read_text().strip()]
    rust = output("rustc", "--version").split()[1]
    licences = pathlib.Path(output("rustc", "--print", "sysroot").strip()) / "share/doc/rust/licenses"
    texts = [(licences / f"{name}.txt").read_text().strip() for name in ("MIT", "Apache-2.0")]
    yield f"Rust's standard library {rust}", "MIT OR Apache-2.0", texts
    for package in linked_packages():
        yield f"{package['name']} {package['version']}", package["license"] or "see its text below", list(texts_of(package))


def main(musl):
    users = {}
    without = []
    print("shardfs is linked with these:\n")
    for name, licence, texts in parts(musl):
        print(f"{name}: {licence}")
        # Packages of one project may leave the text to the others; what is free of conditions has none.
        if not texts and not re.search(r"\b(MIT|Apache-2.0|0BSD|Unlicense|CC0-1.0)\b", licence):
            without.append(name)
        for text in texts:
            names = users.setdefault(text, [])
            if name not in names:
                names.append(name)
    for text, names in users.items():
        print(f"\n{'-' * 79}\n{', '.join(names)}:\n\n{text}")
    if without:
        sys.exit(f"no text of the licence of {', '.join(without)}: add one below {OWN_TEXTS}")


main(sys.argv[1])
