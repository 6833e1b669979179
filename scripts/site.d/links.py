"""Checks that each link between the pages of a directory of HTML leads somewhere, its anchor included.

    links.py DIRECTORY
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The addresses that a page links to, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        self.links += filter(None, (attributes.get("href"), attributes.get("src")))


def broken(top):
    """Yields a line for each link that leads nowhere."""
    pages = {path: Page(path) for path in top.rglob("*.html")}
    for path, page in pages.items():
        # All pages in one: its links are those of the others.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = path
            if address.path:
                target = (path.parent / urllib.parse.unquote(address.path)).resolve()
            if not target.exists():
                yield f"{path.relative_to(top)}: {link}: no such file"
            elif address.fragment and target in pages and address.fragment not in pages[target].anchors:
                yield f"{path.relative_to(top)}: {link}: no such heading"


lines = sorted(set(broken(pathlib.Path(sys.argv[1]).resolve())))
print("\n".join(lines), end="\n" if lines else "")
sys.exit(1 if lines else 0)
