"""Copies the pages of the documentation to a directory, for mdBook.

    pages.py DIRECTORY

The pages are those of SUMMARY.md, and files beside them that they link to. Links to what is in the repository
alone, such as its sources, become plain text: a site has no place for them.
"""

import pathlib
import re
import shutil
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
COPIED = (".json", ".svg", ".png")
README = TOP / "README.md"
# Name of README.md in the site: mdBook makes index.html of both, and gets only links to this one right.
FIRST = "index.md"


def is_of_site(target, pages):
    """Returns whether a file of the repository has a place in the site."""
    return target in pages or (target.is_file() and (target.suffix in COPIED or target.name.startswith("LICENSE")))


def page(path, pages, copied):
    """Returns the text of a page, and adds to `copied` the files that it links to."""

    def link(match):
        words, address = match.groups()
        if re.match(r"[a-z]+:|#", address):
            return match.group()
        target = (path.parent / address.split("#")[0]).resolve()
        if not target.exists():
            sys.exit(f"{path}: {address} leads nowhere")
        if not is_of_site(target, pages):
            return words
        if target not in pages:
            copied.add(target)
        return f"[{words}]({address.replace('README.md', FIRST)})" if target == README else match.group()

    # Blocks of code have no links.
    parts = re.split(r"(^```.*?^```$)", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def place(into, path):
    """Returns where a file of the repository goes, with a directory for it."""
    made = into / (FIRST if path == README else path.relative_to(TOP))
    made.parent.mkdir(parents=True, exist_ok=True)
    return made


def main(into):
    summary = TOP / "scripts/site.d/SUMMARY.md"
    pages = {(TOP / address) for _, address in LINK.findall(summary.read_text())}
    copied = set()
    for path in pages:
        made = place(into, path)
        made.write_text(page(path, pages, copied))
    for path in copied:
        shutil.copyfile(path, place(into, path))
    (into / "SUMMARY.md").write_text(summary.read_text().replace("README.md", FIRST))


main(pathlib.Path(sys.argv[1]))
