"""How each format writes calls, for grammars that make a model write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ArgumentForm = Literal["json", "keywords", "tags"]
"""A JSON object, Python's keyword arguments, or values in tags."""


@dataclass(frozen=True, slots=True)
class CallNotation:
    """The text around calls; "NAME" stands for the tool."""

    before_call: str
    after_call: str
    opening: str = ""
    """Before the first call."""
    closing: str = ""
    """After the last."""
    separator: str = ""
    """Between two."""
    trigger: str = ""
    """What text must not contain unless calls follow; empty: calls cannot be told from text in advance."""
    arguments: ArgumentForm = "json"
    tags: tuple[str, str] = ("<parameter=KEY>\n", "\n</parameter>\n")
    """Before and after a tagged value."""
    is_single: bool = False
    """Whether an answer ends with its first call."""


_HERMES = CallNotation(
    '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", separator="\n", trigger="<tool_call>"
)
_FALCON = CallNotation(
    '{"name": "NAME", "arguments": ', "}", "<tool_call>\n[\n  ", "\n]\n</tool_call>", ",\n  ", trigger="<tool_call>"
)
_MISTRAL_LIST = CallNotation(
    '{"name": "NAME", "arguments": ', "}", "[TOOL_CALLS] [", "]", separator=", ", trigger="[TOOL_CALLS]"
)
_MISTRAL_NAMED = CallNotation("[TOOL_CALLS]NAME[ARGS]", "", trigger="[TOOL_CALLS]")
_DEEPSEEK_FENCED = CallNotation(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    separator="\n",
    trigger="<｜tool▁calls▁begin｜>",
)
_DEEPSEEK_PLAIN = CallNotation(
    "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)
_NOTATIONS: Mapping[str, CallNotation] = {
    "gemma": CallNotation("<|tool_call>call:NAME", "<tool_call|>", trigger="<|tool_call>"),
    "harmony": CallNotation("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "", is_single=True),
    "hermes": _HERMES,
    "kimi": CallNotation(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        trigger="<|tool_calls_section_begin|>",
        is_single=True,
    ),
    "minimax": CallNotation(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
        trigger="<minimax:tool_call>",
        arguments="tags",
        tags=('<parameter name="KEY">', "</parameter>\n"),
    ),
    "nemotron": CallNotation(
        '{"name": "NAME", "arguments": ', "}", "<TOOLCALL>[", "]</TOOLCALL>", separator=", ", trigger="<TOOLCALL>"
    ),
    "llama_json": CallNotation('{"name": "NAME", "parameters": ', "}", separator="; "),
    "pythonic": CallNotation("NAME(", ")", "[", "]", separator=", ", arguments="keywords"),
    "qwen_coder": CallNotation(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments="tags",
    ),
}


def notation_of(tool_format: str, template: str) -> CallNotation:
    """Return the notation of a format, in the variant that a chat template writes."""
    if tool_format == "mistral":
        return _MISTRAL_NAMED if "[ARGS]" in template else _MISTRAL_LIST
    if tool_format == "hermes" and "<tool_call>\\n[" in template:
        return _FALCON
    if tool_format == "deepseek":
        return _DEEPSEEK_FENCED if "```json" in template else _DEEPSEEK_PLAIN
    if tool_format == "glm":
        line = "" if "{function-name}<arg_key>" in template else "\n"
        tags = (f"<arg_key>KEY</arg_key>{line}<arg_value>", f"</arg_value>{line}")
        return CallNotation(
            f"<tool_call>NAME{line}", "</tool_call>", "", "", line, "<tool_call>", arguments="tags", tags=tags
        )
    return _NOTATIONS[tool_format]
