"""From Anthropic's messages to those of chat templates."""

from __future__ import annotations

from collections.abc import Sequence

from baton.gateway.api.anthropic.schema import Block, ConversationBody, MessageParam
from baton.gateway.api.errors import invalid, unsupported
from baton.gateway.generation.tools import MAX_MESSAGES, call_of_answer
from baton.text.tokenizer import Message

_ROLES = ("user", "assistant", "system")
_FIELDS = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
"""Types of blocks that are served, and their fields."""
_OPTIONAL = ("signature", "content", "is_error")
_BLOCKS_OF_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def conversation(body: ConversationBody) -> tuple[Message, ...]:
    """Return the conversation for chat templates, the system first; raise ApiError, 400, naming a wrong block."""
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise invalid("messages", f"expected 1 to {MAX_MESSAGES}, got {len(body.messages)}")
    turns: list[Message] = []
    if body.system:
        turns.append({"role": "system", "content": _text("system", body.system, ("text",))})
    for index, message in enumerate(body.messages):
        turns += _turns(f"messages[{index}]", message)
    return tuple(turns)


def _turns(name: str, message: MessageParam) -> Sequence[Message]:
    if message.role not in _ROLES:
        raise invalid(f"{name}.role", f"`{message.role}` is none of {', '.join(_ROLES)}")
    content = message.content
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    text = _text(f"{name}.content", content, _BLOCKS_OF_ROLE[message.role])
    if message.role == "user":
        return _user_turns(name, content, text)
    turn: dict[str, object] = {"role": message.role, "content": text}
    if thinking := "".join(block.thinking or "" for block in content):
        turn["reasoning_content"] = thinking
    calls = [
        call_of_answer(block.id or "", block.name or "", block.input or {})
        for block in content
        if block.type == "tool_use"
    ]
    return [{**turn, "tool_calls": calls, "content": text or None} if calls else turn]


def _user_turns(name: str, content: Sequence[Block], text: str) -> Sequence[Message]:
    """Return the results of tools, each a message of its own, then what the user says beside them."""
    turns: list[Message] = []
    for index, block in enumerate(content):
        if block.type == "tool_result":
            result = _text(f"{name}.content[{index}].content", block.content or "", ("text",))
            turns.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
    has_text = any(block.type == "text" for block in content)
    return [*turns, {"role": "user", "content": text}] if has_text or not turns else turns


def _text(name: str, content: str | Sequence[Block], kinds: Sequence[str]) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        _check_block(f"{name}[{index}]", block, kinds)
    return "".join(block.text or "" for block in content)


def _check_block(name: str, block: Block, kinds: Sequence[str]) -> None:
    if block.type not in kinds:
        raise unsupported(f"{name}.type", f"only blocks of type {', '.join(kinds)} are served here, got `{block.type}`")
    fields = _FIELDS[block.type]
    for field in block.__struct_fields__:
        value = getattr(block, field)
        if field in fields:
            if value is None and field not in _OPTIONAL:
                raise invalid(f"{name}.{field}", "expected text" if field == "text" else "expected a value")
        elif field != "type" and value is not None:
            raise unsupported(f"{name}.{field}")
