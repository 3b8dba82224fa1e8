"""All fields that a body can have, by their paths."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import inspect


def field_paths(body: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the path of every field of a body and of the objects within it, such as `messages[].name`.

    An object that occurs at several places is looked into at the first. One of several types is told by its own:
    `content[text].text`.
    """
    yield from _paths(inspect.type_info(body), "", set())


def _paths(info: inspect.Type, path: str, seen: set[type]) -> Iterator[str]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return
            seen.add(cls)
            for field in fields:
                name = f"{path}.{field.name}" if path else field.name
                yield name
                yield from _paths(field.type, name, seen)
        case inspect.ListType(item_type=item) | inspect.CollectionType(item_type=item):
            kinds = _kinds(item)
            for kind, each in kinds.items():
                yield from _paths(inspect.type_info(each), f"{path}[{kind}]", seen)
            if not kinds:
                yield from _paths(item, f"{path}[]", seen)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _paths(each, path, seen)
        case _:
            return


def _kinds(info: inspect.Type) -> dict[str, type[msgspec.Struct]]:
    """Return the types that stand for one that says nothing of its own, by what their field `type` is."""
    if not isinstance(info, inspect.StructType) or "type" in info.cls.__struct_fields__:
        return {}
    told = {each: inspect.type_info(each) for each in info.cls.__subclasses__()}
    kinds = {
        str(field.default): each
        for each, kind in told.items()
        if isinstance(kind, inspect.StructType)
        for field in kind.fields
        if field.name == "type"
    }
    return kinds if len(kinds) == len(told) else {}
