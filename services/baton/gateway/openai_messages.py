"""From the messages of OpenAI's bodies to those of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.gateway.openai_errors import refused
from baton.gateway.openai_schema import MAX_MESSAGES, ContentPart, Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that are served, as chat templates know them."""


def chat_messages(messages: Sequence[Message]) -> tuple[Mapping[str, str], ...]:
    """Return a conversation as chat templates know it.

    Raises:
        ApiError: 400, naming the message that cannot be served.
    """
    if not messages:
        raise refused("messages", "Invalid value for `messages`: expected at least one message", code="empty_array")
    if len(messages) > MAX_MESSAGES:
        text = f"Invalid value for `messages`: expected at most {MAX_MESSAGES}, got {len(messages)}"
        raise refused("messages", text, code="invalid_value")
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: Message) -> Mapping[str, str]:
    role = ROLES.get(message.role)
    if role is None:
        param = f"messages[{index}].role"
        text = f"Invalid value for `{param}`: `{message.role}` is none of {', '.join(ROLES)}"
        raise refused(param, text, code="invalid_value")
    if message.content is None:
        param = f"messages[{index}].content"
        raise refused(param, f"Invalid value for `{param}`: expected text", code="invalid_value")
    fields = {"role": role, "content": _text(index, message.content)}
    return fields if message.name is None else {**fields, "name": message.name}


def _text(index: int, content: str | list[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    for part_index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            param = f"messages[{index}].content[{part_index}].type"
            text = f"Unsupported parameter: `{param}`: only parts of type text are served, got `{part.type}`"
            raise refused(param, text, code="unsupported_parameter")
    return "".join(part.text or "" for part in content)
