"""The table of what each dialect of the public API calls a field: written from their descriptors and schemas.

A row of rows.toml is a meaning with all the names that it has anywhere. Which of them a dialect has, its schema
says. A field in no row, a name that no dialect has, and a cell that is empty without a reason are drift. `make
public-api` writes the page where there is none.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from baton.gateway.api.anthropic.schema import MessageAnswer, MessagesBody
from baton.gateway.api.openai.schema import ChatAnswer, ChatBody, CompletionAnswer, CompletionBody
from baton.gateway.api.responses.schema import ResponseObject, ResponsesBody
from baton.v1.generation_service_pb2 import GenerateRequest, GenerateResponse
from gateway.api.parameters.body_fields import field_paths
from house.public_api import PACKAGE
from house.repository import ROOT

PAGE = ROOT / "docs/dialects.md"
ROWS = Path(__file__).with_name("rows.toml")
DIALECTS = ("gRPC", "chat completions", "completions", "responses", "messages")
_BRACES = re.compile(r"(.*)\{(.*)\}(.*)")


class Table(NamedTuple):
    """One half of the page."""

    fields: Sequence[frozenset[str]]
    """Of each dialect."""
    rows: Mapping[str, Mapping[str, str]]
    """By meaning: its names, and why some dialects have none."""

    def cells(self, meaning: str) -> list[list[str]]:
        """Return the names of a meaning in each dialect."""
        names = names_of(self.rows[meaning])
        told = ([_within(dialect, name) for name in names] for dialect in DIALECTS)
        return [[name for name in row if name in fields] for row, fields in zip(told, self.fields, strict=True)]

    def drift(self) -> Iterator[str]:
        """Yield what is wrong with the rows."""
        uses = Counter(name for row in self.rows.values() for name in names_of(row))
        yield from (f"{name} is in {count} rows" for name, count in uses.items() if count > 1)
        known: set[str] = set()
        for dialect, fields in zip(DIALECTS, self.fields, strict=True):
            in_rows = {_within(dialect, name): name for name in uses}
            yield from (f"{dialect}: {name} is in no row" for name in sorted(fields - in_rows.keys()))
            known |= {in_rows[name] for name in fields & in_rows.keys()}
        yield from (f"{name} is in a row and in no dialect" for name in sorted(uses.keys() - known))
        for meaning, row in self.rows.items():
            is_everywhere = all(self.cells(meaning))
            if is_everywhere == ("why" in row):
                wrong = "a reason, and no empty cell" if is_everywhere else "an empty cell, and no reason"
                yield f"{meaning}: {wrong}"


def names_of(row: Mapping[str, str]) -> list[str]:
    """Return all names of a row, `a.{b,c}` written out."""
    names = []
    for word in row["names"].split():
        match = _BRACES.fullmatch(word)
        names += [f"{match[1]}{part}{match[3]}" for part in match[2].split(",")] if match else [word]
    return names


def _within(dialect: str, name: str) -> str:
    """Return what a dialect calls a name of a row; empty: it is another's."""
    owner, _, own = name.rpartition(":")
    return own if owner in ("", dialect) else ""


def tables() -> tuple[Table, Table]:
    """Return what can be asked and what is answered, as schemas have it."""
    rows = tomllib.loads(ROWS.read_text())
    asked = map(field_paths, (ChatBody, CompletionBody, ResponsesBody, MessagesBody))
    answered = map(field_paths, (ChatAnswer, CompletionAnswer, ResponseObject, MessageAnswer))
    requests = proto_paths(GenerateRequest.DESCRIPTOR), *asked
    responses = proto_paths(GenerateResponse.DESCRIPTOR), *answered
    return (
        Table([_leaves(list(paths)) for paths in requests], rows["asked"]),
        Table([_leaves(list(paths)) for paths in responses], rows["answered"]),
    )


def proto_paths(message: Descriptor, start: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the path of every field of a message and of those within it; one within itself is looked into once."""
    for field in message.fields:
        inner = field.message_type
        is_own = inner is not None and not inner.GetOptions().map_entry and inner.file.package == PACKAGE
        if not is_own or inner.name in above:
            yield f"{start}{field.name}"
        else:
            mark = "[]" if field.label == FieldDescriptor.LABEL_REPEATED else ""
            yield from proto_paths(inner, f"{start}{field.name}{mark}.", (*above, inner.name))


def _leaves(paths: Sequence[str]) -> frozenset[str]:
    """Return the fields that hold no further ones; those are told by what they hold."""
    holders = {path[:index] for path in paths for index, letter in enumerate(path) if letter in ".["}
    return frozenset(path for path in paths if path not in holders)


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for title, table in zip(("What can be asked", "What is answered"), tables(), strict=True):
        lines += ["", f"## {title}", "", f"| | {' | '.join(DIALECTS)} |", "|---" * (len(DIALECTS) + 1) + "|"]
        for meaning, row in table.rows.items():
            cells = ["<br>".join(f"`{name}`" for name in names) or "-" for names in table.cells(meaning)]
            reason = f" ({row['why']})" if "why" in row else ""
            lines.append(f"| {meaning}{reason} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_HEAD = """\
# Dialects

gRPC's `Generate` and the four REST APIs are views of one core, `services/baton/gateway/generation`: what one learns
the others have. A row is a meaning, and behind it why some dialects have none. `make public-api` writes this page from
descriptors and schemas and `tests/house/dialects/rows.toml`; a test fails where a field of any dialect is in no row."""


if __name__ == "__main__":
    problems = [problem for table in tables() for problem in table.drift()]
    if problems:
        raise SystemExit("\n".join(problems))
    PAGE.write_text(page())
