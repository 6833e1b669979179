"""Is everything of a picture of `shardfs info --svg` on the sheet, and no text on another one?

    picture.py FILE
"""
import re
import sys
import xml.etree.ElementTree as tree

SPACE = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
sheet = (0, 0, float(root.get("width")), float(root.get("height")))
assert root.get("viewBox") == f"0 0 {sheet[2]:.0f} {sheet[3]:.0f}"
assert sheet[2] <= 2000 and sheet[3] <= 4000, f"not for a screen: {sheet}"


def number(element, name):
    return float(element.get(name))


def box_of_text(element):
    """What a text covers, in a usual sans-serif font."""
    size = 10 if element.get("class") == "axis" else 12
    width, height = len(element.text or "") * size * 0.58, size * 0.75
    moved = re.fullmatch(r"translate\((\S+) (\S+)\) rotate\(-90\)", element.get("transform", ""))
    if moved:
        x, y = map(float, moved.groups())
        assert element.get("text-anchor") == "end"
        return (x - height, y, x, y + width)
    x, y = number(element, "x"), number(element, "y")
    if element.get("text-anchor") == "end":
        x -= width
    return (x, y - height, x + width, y)


def is_inside(box):
    return sheet[0] <= box[0] and sheet[1] <= box[1] and box[2] <= sheet[2] and box[3] <= sheet[3]


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


texts = [(box_of_text(text), text.text) for text in root.iter(SPACE + "text")]
for box, text in texts:
    assert is_inside(box), f"clipped: {text!r} {box} of {sheet}"
for at, (box, text) in enumerate(texts):
    for other, more in texts[at + 1:]:
        assert not overlap(box, other), f"{text!r} is on {more!r}"
for rect in root.iter(SPACE + "rect"):
    x, y = number(rect, "x") if rect.get("x") else 0, number(rect, "y") if rect.get("y") else 0
    box = (x, y, x + number(rect, "width"), y + number(rect, "height"))
    assert is_inside(box), f"clipped: {box} of {sheet}"
    if rect.get("class"):
        assert not any(overlap(box, other) for other, _ in texts), f"a text on a cell: {box}"
for line in root.iter(SPACE + "line"):
    assert is_inside([number(line, name) for name in ("x1", "y1", "x2", "y2")]), "a line off the sheet"
