"""Frozen dataclasses out of JSON documents."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
# Makes a value of a JSON value; the text says where that stands.
Convert = Callable[[Any, str], Any]


class Unexpected(ValueError):
    """A document is not as it should be."""


def parser(kind: type[T]) -> Callable[[bytes], T]:
    """A function that makes a dataclass of the text of a JSON document.

    Members that the dataclass does not have are ignored. One that is missing, or has another type, is
    `Unexpected`, unless the dataclass has a default for it.
    """
    convert = _of_dataclass(kind)

    def parse(text: bytes) -> T:
        return cast(T, convert(document(text), "the output"))

    return parse


def document(text: bytes) -> Any:
    """The value of a JSON document."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unexpected(f"{error}: {text[:100]!r}") from None


def _converter(hint: Any) -> Convert:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, at: value
    if origin in (Union, types.UnionType):
        (some,) = (it for it in arguments if it is not types.NoneType)
        convert = _converter(some)
        return lambda value, at: None if value is None else convert(value, at)
    if origin is tuple:
        return _of_list(_converter(arguments[0]))
    if origin is Mapping or is_typeddict(hint):
        return _of_type(dict, dict)
    if is_dataclass(hint):
        return _of_dataclass(cast("type[Any]", hint))
    return _of_type(hint, (int, float) if hint is float else hint)


def _of_dataclass(kind: type[Any]) -> Convert:
    hints = get_type_hints(kind)
    members = [(field.name, _converter(hints[field.name]), field.default is MISSING) for field in fields(kind)]

    def convert(value: Any, at: str) -> Any:
        if not isinstance(value, dict):
            raise Unexpected(f"{at} is no object")
        found = {}
        for name, member, is_required in members:
            if name in value:
                found[name] = member(value[name], f"{at}: {name}")
            elif is_required:
                raise Unexpected(f"{at} has no member {name}")
        return kind(**found)

    return convert


def _of_list(item: Convert) -> Convert:
    def convert(value: Any, at: str) -> Any:
        if not isinstance(value, list):
            raise Unexpected(f"{at} is no list")
        return tuple([item(it, at) for it in value])

    return convert


def _of_type(kind: type[Any], types: Any) -> Convert:
    def convert(value: Any, at: str) -> Any:
        # In Python, True is a number.
        if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
            raise Unexpected(f"{at} is no {kind.__name__}")
        return value

    return convert
