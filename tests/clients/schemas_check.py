"""Validates what the commands print for programs by the schemas in docs/schemas, and the schemas themselves.

The name of a file of output begins with that of its schema: info.XXXXXX.
"""

import argparse
import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Each line of these is an object.
LINES = ("ls", "verify")
# What stands there is up to the source.
FREE = ("fill_value", "attributes", "data_type_configuration", "metadata")
# Texts that are one of a closed set of words, or have a form.
WORDS = ("format", "index_location", "severity", "code", "kind", "command", "state", "crc32c", "digest", "last_commit")
# Members that need not be there.
OPTIONAL = {
    "ls": ("crc32c",),
    "verify": ("shard", "position", "chunk"),
    "stats": ("uncommitted", "failing", "last_commit", "unsaved"),
    "status": ("uncommitted", "failing", "last_commit", "unsaved"),
}
# Members that are there only if the source is in a store on the network.
OF_STORES = {
    "info": ("writing.shards", "writing.error"),
    "stats": ("store.shards",),
    "status": ("mounts.stats.store.shards",),
}


def parsed(text: str):
    """A document; the bare words that Python takes as well are no JSON."""

    def refuse(word: str):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class Schemas:
    """The schemas of a directory, which may refer to each other."""

    def __init__(self, directory: Path) -> None:
        files = sorted(directory.glob("*.schema.json"))
        self.by_name = {path.name.removesuffix(".schema.json"): parsed(path.read_text()) for path in files}
        assert self.by_name, f"{directory}: no schemas"
        resources = [(f"{name}.schema.json", Resource.from_contents(schema)) for name, schema in self.by_name.items()]
        self.registry = Registry().with_resources(resources)

    def validator(self, name: str) -> Draft202012Validator:
        return Draft202012Validator(self.by_name[name], registry=self.registry)

    def resolved(self, name: str, schema: dict) -> tuple[str, dict]:
        """What a reference leads to, and the name of the schema that is in; a description beside it stays."""
        while reference := schema.get("$ref"):
            document, _, pointer = reference.partition("#")
            name = document.removesuffix(".schema.json") or name
            target = self.by_name[name]
            for part in pointer.split("/")[1:]:
                target = target[part]
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return name, schema

    def members(self, name: str, schema: dict, at: tuple = ()):
        """All members that documents can have, with their places and what is said of them."""
        name, schema = self.resolved(name, schema)
        # Other branches are conditions for members that are described here.
        branches = [schema[word] for word in ("then", "else") if "$ref" in schema.get(word, ())]
        for each in [schema, *branches]:
            owner, each = self.resolved(name, each)
            for member, described in each.get("properties", {}).items():
                _, described = self.resolved(owner, described)
                yield (*at, member), described, each
                yield from self.members(owner, described, (*at, member))
            if isinstance(each.get("items"), dict):
                yield from self.members(owner, each["items"], at)


def check_schema(schemas: Schemas, name: str) -> None:
    """It is a schema, each member is described, and there are no others."""
    schema = schemas.by_name[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DRAFT and schema["$id"] == f"{name}.schema.json", name
    assert schema["title"] and schema["description"], name
    members = list(schemas.members(name, schema))
    assert members, f"{name}: no members"
    for at, member, owner in members:
        place = f"{name}: {'.'.join(at)}"
        description = member.get("description", "")
        is_line = re.fullmatch(r"\S.*[^\s.]", description)
        assert is_line, f"{place}: no description of one line: {description!r}"
        assert owner.get("additionalProperties") is False, f"{place}: beside it any member is permitted"
        kinds = member.keys() & {"type", "enum", "const"}
        assert kinds or at[-1] == "fill_value", f"{place}: no type"
        types = member.get("type", [])
        is_counted = "integer" in types or "number" in types
        assert "minimum" in member or not is_counted, f"{place}: no minimum"
        assert "properties" in member or "object" not in types or at[-1] in FREE, f"{place}: no members"


def check_codes(schemas: Schemas, page: Path) -> None:
    """The documentation names the same kinds of findings."""
    (condition, _) = schemas.by_name["verify"]["$defs"]["finding"]["allOf"]
    for severity, branch in (("defect", "then"), ("note", "else")):
        codes = condition[branch]["properties"]["code"]["enum"]
        table = re.search(rf"^\| code of a {severity} \|.*?\n\n", page.read_text(), re.M | re.S)
        rows = table.group().strip().splitlines()[2:]
        named = [code for row in rows for code in re.findall(r"`([\w-]+)`", row.split("|")[1])]
        assert sorted(named) == sorted(codes), set(named) ^ set(codes)


def documents(path: Path):
    """The documents of a file."""
    name, text = path.name.split(".")[0], path.read_text()
    if name not in LINES:
        return name, [parsed(text)]
    # With --null, a zero byte is where a line ends.
    lines = re.split("[\n\0]", text)
    assert lines.pop() == "", f"{path}: the last line has no end"
    found = [parsed(line) for line in lines]
    if name == "verify":
        assert [line for line in found if "summary" in line] == found[-1:], f"{path}: no summary at its end"
    return name, found


def conform(schemas: Schemas, files: list) -> None:
    """All files are as their schemas say."""
    assert files, "no files"
    for path in files:
        name, found = documents(path)
        validator = schemas.validator(name)
        for document in found:
            error = best_match(validator.iter_errors(document))
            assert error is None, f"{path}: {error.json_path}: {error.message[:500]}"


def wrong_values(name: str, value):
    """What cannot stand in the place of a value: other types, other words, numbers that are none of things."""
    if isinstance(value, bool):
        return ["true", 1]
    if isinstance(value, int):
        return [str(value), -1, value + 0.5]
    if isinstance(value, float):
        return [str(value), -1]
    if isinstance(value, str):
        return [1, *(["another word"] if name in WORDS else [])]
    if isinstance(value, list):
        return ["text", {}, [{"unknown": 1}]]
    if isinstance(value, dict):
        return ["text", [], {**value, "unknown": 1}]
    return [{"unknown": 1}]


def variants(schema: str, value, at: tuple = ()):
    """Documents with one defect each, and where it is."""
    for number, wrong in enumerate(wrong_values(at[-1] if at else "", value)):
        yield (*at, type(value).__name__, number), wrong
    if isinstance(value, list) and value and at[-1] not in FREE:
        for place, wrong in variants(schema, value[0], at):
            yield place, [wrong, *value[1:]]
    if isinstance(value, dict):
        for name, member in value.items():
            others = {other: it for other, it in value.items() if other != name}
            if name not in OPTIONAL.get(schema, ()):
                yield (*at, f"without {name}"), others
            if name not in FREE:
                for place, wrong in variants(schema, member, (*at, name)):
                    yield place, {**value, name: wrong}


def refuse(schemas: Schemas, files: list) -> None:
    """Whatever is wrong with a document, its schema refuses it."""
    tried = set()
    for path in files:
        name, found = documents(path)
        validator = schemas.validator(name)
        for document in found:
            for place, wrong in variants(name, document):
                if (name, place) not in tried:
                    tried.add((name, place))
                    assert not validator.is_valid(wrong), f"{path}: {place}: permitted: {json.dumps(wrong)[:500]}"
    names = {name for name, _ in tried}
    assert names == schemas.by_name.keys(), schemas.by_name.keys() - names
    print(f"{len(tried)} defects")


def places(value, at: tuple = ()):
    """The places of all members of a document."""
    if isinstance(value, list):
        for item in value:
            yield from places(item, at)
    if isinstance(value, dict):
        for name, member in value.items():
            yield (*at, name)
            if name not in FREE:
                yield from places(member, (*at, name))


def complete(schemas: Schemas, files: list) -> None:
    """Each member that a schema describes is in some file: none is left of what was there once."""
    seen = {name: set() for name in schemas.by_name}
    for path in files:
        name, found = documents(path)
        for document in found:
            seen[name].update(".".join(place) for place in places(document))
    for name, schema in schemas.by_name.items():
        described = {".".join(at) for at, _, _ in schemas.members(name, schema)}
        missing = described - seen[name] - set(OF_STORES.get(name, ()))
        assert not missing, f"{name}: in no output: {sorted(missing)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("schemas", type=Path)
    parser.add_argument("what", choices=("schemas", "conform", "refuse", "complete"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    schemas = Schemas(args.schemas)
    if args.what == "schemas":
        for name in schemas.by_name:
            check_schema(schemas, name)
        if args.page:
            check_codes(schemas, args.page)
        return
    {"conform": conform, "refuse": refuse, "complete": complete}[args.what](schemas, args.files)


main()
