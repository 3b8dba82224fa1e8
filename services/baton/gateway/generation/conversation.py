"""The messages of a conversation, whichever API they came by, as chat templates know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.errors import InvalidFieldError
from baton.text.tokenizer import Message

MAX_MESSAGES = 2048
"""Of a conversation."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that are served, as chat templates know them."""


class ChatTurn(NamedTuple):
    """One message, in no API's words."""

    role: str
    content: str | None
    """Its text; None: a call says it all."""
    name: str | None = None
    """Who speaks, for templates that know it."""
    calls: Sequence[Mapping[str, object]] = ()
    """Calls of an assistant's answer, as `tools.call_of_answer` makes them."""
    tool_call_id: str | None = None
    """Of a tool's result: the call that it answers."""
    reasoning: str = ""
    """Of an assistant's answer."""
    reasoning_field: str = "reasoning"
    """What the API calls it."""


def template_message(param: str, turn: ChatTurn) -> Message:
    """Return a message as chat templates know it.

    Raises:
        InvalidFieldError: Naming the field that is wrong, or that its role cannot have.
    """
    role = ROLES.get(turn.role)
    if role is None:
        raise InvalidFieldError(f"{param}.role", f"`{turn.role[:64]}` is none of {', '.join(ROLES)}")
    if turn.content is None and not turn.calls:
        raise InvalidFieldError(f"{param}.content", "expected text")
    _check_fields(param, turn)
    fields: dict[str, object] = {"role": role, "content": turn.content}
    if turn.name is not None:
        fields["name"] = turn.name
    if turn.reasoning:
        fields["reasoning_content"] = turn.reasoning
    if turn.calls:
        fields["tool_calls"] = list(turn.calls)
    if turn.tool_call_id is not None:
        fields["tool_call_id"] = turn.tool_call_id
    return fields


def _check_fields(param: str, turn: ChatTurn) -> None:
    """Check what only some roles have."""
    if turn.role != "assistant":
        for name, value in (("tool_calls", turn.calls), (turn.reasoning_field, turn.reasoning)):
            if value:
                raise InvalidFieldError(f"{param}.{name}", "expected only with role assistant")
    if turn.role == "tool" and turn.tool_call_id is None:
        raise InvalidFieldError(f"{param}.tool_call_id", "expected the id of the call that this answers")
    if turn.role != "tool" and turn.tool_call_id is not None:
        raise InvalidFieldError(f"{param}.tool_call_id", "expected only with role tool")
