"""From the input of a response to the messages of chat templates."""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence

from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import invalid, missing, unsupported
from baton.gateway.api.responses.schema import InputItem, InputPart, ResponsesBody
from baton.gateway.generation.tools import MAX_MESSAGES, call_of_answer, parsed_arguments
from baton.text.tokenizer import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text")
_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("content", "summary", "encrypted_content"),
}
"""Types of items that are served, and their fields beside `id` and `status`."""
_HOSTED = re.compile(r"(web_search|file_search|code_interpreter|image_generation|mcp|tool_search)_\w+")
"""Types of items that tell what tools of another server did; what came of it is in its answer."""
_SEAL = "baton1."
"""Begins what stands for reasoning that a client shall not look into, and that nobody keeps for it."""


def sealed(reasoning: str) -> str:
    """Return reasoning as `encrypted_content`: in a form that clients hand back as it is. It is no secret."""
    return _SEAL + urlsafe_b64encode(reasoning.encode()).decode()


def conversation(body: ResponsesBody, exchange: Exchange) -> tuple[Message, ...]:
    """Return the conversation for chat templates, the instructions first; raise ApiError, 400, naming a wrong item."""
    turns: list[Message] = [] if not body.instructions else [{"role": "system", "content": body.instructions}]
    if isinstance(body.input, str):
        return (*turns, {"role": "user", "content": body.input})
    if not 1 <= len(body.input) <= MAX_MESSAGES:
        raise invalid("input", f"expected 1 to {MAX_MESSAGES} messages, got {len(body.input)}")
    builder = _Turns(exchange)
    for index, item in enumerate(body.input):
        builder.add(f"input[{index}]", item)
    return (*turns, *builder.turns())


class _Turns:
    """Puts items together to turns: reasoning, text and calls of one answer are one message."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._turns: list[Message] = []
        self._answer: dict[str, object] = {}
        """Message of the assistant that further items may belong to."""

    def add(self, name: str, item: InputItem) -> None:
        if _HOSTED.fullmatch(item.type):
            self._exchange.ignore(f"input[{item.type}]", unsupported(f"{name}.type"))
            return
        _check_fields(name, item)
        if item.type == "reasoning":
            self._close()
            parts = item.content or self._unsealed(name, item.encrypted_content) or item.summary or ""
            self._answer["reasoning_content"] = _text(name, parts, kinds=("reasoning_text", "summary_text"))
        elif item.type == "function_call":
            call = call_of_answer(
                item.call_id or "", item.name or "", parsed_arguments(f"{name}.arguments", item.arguments or "")
            )
            calls = self._answer.setdefault("tool_calls", [])
            assert isinstance(calls, list)
            calls.append(call)
        elif item.type == "function_call_output":
            self._close()
            content = _text(f"{name}.output", item.output or "")
            self._turns.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        else:
            self._add_message(name, item)

    def turns(self) -> Sequence[Message]:
        self._close()
        return self._turns

    def _add_message(self, name: str, item: InputItem) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise invalid(f"{name}.role", f"`{item.role}` is none of {', '.join(_ROLES)}")
        if item.content is None:
            raise invalid(f"{name}.content", "expected text")
        content = _text(f"{name}.content", item.content)
        if role != "assistant" or self._answer.keys() & {"content", "tool_calls"}:
            self._close()
        if role == "assistant":
            self._answer["content"] = content
        else:
            self._turns.append({"role": role, "content": content})

    def _unsealed(self, name: str, content: str | None) -> str:
        """Return what is sealed; that of other servers cannot be read."""
        try:
            if content is None or content.startswith(_SEAL):
                return b64decode((content or "").removeprefix(_SEAL), b"-_", validate=True).decode()
        except ValueError as error:
            raise invalid(f"{name}.encrypted_content", "expected it as the answer had it") from error
        self._exchange.ignore("input[].encrypted_content")
        return ""

    def _close(self) -> None:
        if self._answer.keys() & {"content", "tool_calls"}:
            self._turns.append({"role": "assistant", "content": None, **self._answer})
        self._answer = {}


def _check_fields(name: str, item: InputItem) -> None:
    fields = _FIELDS.get(item.type)
    if fields is None:
        raise unsupported(f"{name}.type", f"expected one of {', '.join(_FIELDS)}, got `{item.type}`")
    for field in item.__struct_fields__:
        if field not in ("type", "id", "status", *fields) and getattr(item, field) is not None:
            raise unsupported(f"{name}.{field}")
        if field in fields and item.type.startswith("function") and getattr(item, field) is None:
            raise missing(f"{name}.{field}")


def _text(name: str, content: str | Sequence[InputPart], kinds: Sequence[str] = _TEXT_PARTS) -> str:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        part_name = f"{name}[{index}]"
        if part.type not in kinds or part.text is None:
            raise unsupported(f"{part_name}.type", f"only parts with text are served, got `{part.type}`")
    return "".join(part.text or "" for part in content)
