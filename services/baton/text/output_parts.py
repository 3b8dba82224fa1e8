"""What an answer is made of: content, reasoning and calls of tools, in the order in which a model writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias


class Content(NamedTuple):
    """Text for the reader."""

    text: str


class Reasoning(NamedTuple):
    """Text that the model wrote for itself."""

    text: str


class CallStart(NamedTuple):
    """A call of a tool begins."""

    call_index: int
    """Which call of the answer, from 0."""
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments; all of them together are a JSON object, if the model wrote one."""

    call_index: int
    text: str


class CallEnd(NamedTuple):
    """A call is complete; one that the token limit cut has no end."""

    call_index: int


OutputPart: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd


def joined(parts: Iterable[OutputPart]) -> list[OutputPart]:
    """Return parts with neighbours of one kind made one, and without empty ones."""
    result: list[OutputPart] = []
    for part in parts:
        if isinstance(part, CallStart | CallEnd):
            result.append(part)
            continue
        if not part.text:
            continue
        last = result[-1] if result else None
        if isinstance(part, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.call_index == last.call_index:
            result[-1] = CallArguments(part.call_index, last.text + part.text)
        else:
            result.append(part)
    return result
