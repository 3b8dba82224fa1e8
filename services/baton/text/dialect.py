"""How a model writes calls and reasoning: found out from its template and tokens, or set by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.errors import ConfigurationError
from baton.text.answer_parser import AnswerParser
from baton.text.reasoning import ReasoningMarks, ReasoningSplitter
from baton.text.tool_calls.deepseek import DeepSeekParser
from baton.text.tool_calls.harmony import HarmonyParser
from baton.text.tool_calls.hermes import HermesParser
from baton.text.tool_calls.llama_json import LlamaJsonParser
from baton.text.tool_calls.mistral import MistralParser
from baton.text.tool_calls.parser import ToolParser
from baton.text.tool_calls.pythonic import PythonicParser
from baton.text.tool_calls.qwen_coder import QwenCoderParser
from baton.text.tools import Tool

NONE = "none"
"""Says by hand that there is no such format."""
AUTO = "auto"
"""Says that a format is to be found out."""

TOOL_PARSERS: Mapping[str, type[ToolParser]] = {
    "deepseek": DeepSeekParser,
    "harmony": HarmonyParser,
    "hermes": HermesParser,
    "llama_json": LlamaJsonParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
    "qwen_coder": QwenCoderParser,
}
"""Formats of calls by name."""

REASONING_MARKS: Mapping[str, ReasoningMarks] = {
    "harmony": ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
    "think": ReasoningMarks("<think>", "</think>"),
}
"""Formats of reasoning by name; that of harmony is read with its calls."""

_MARKS_THAT_MAY_BE_TOKENS: Mapping[str, tuple[str, ...]] = {
    "deepseek": tuple(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "qwen_coder": ("<tool_call>", "</tool_call>"),
}

_TOOL_SIGNS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("harmony", ("<|channel|>", "<|start|>")),
    ("deepseek", ("<｜tool▁calls▁begin｜>",)),
    ("qwen_coder", ("<tool_call>", "<function=")),
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama_json", ("<|python_tag|>",)),
    ("llama_json", ('"parameters": ', '{"name": function name')),
)
"""Strings of a chat template by which a format is known, the surest first."""

_REASONING_SIGNS: Sequence[tuple[str, str]] = (
    ("harmony", "<|channel|>analysis<|message|>"),
    ("mistral", "[THINK]"),
    ("think", "</think>"),
    ("think", "<think>"),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The formats of one model; an empty name stands for none."""

    tool_format: str = ""
    """Key of TOOL_PARSERS."""
    reasoning_format: str = ""
    """Key of REASONING_MARKS."""

    def parser(
        self, tools: Sequence[Tool], *, is_in_reasoning: bool = False, is_parallel: bool = True
    ) -> AnswerParser | None:
        """Return a parser of one answer; None if all of it is content.

        Args:
            tools: What may be called; none: calls are content.
            is_in_reasoning: Whether the prompt ends with the mark that opens the reasoning.
            is_parallel: Whether calls after the first are given out.
        """
        reads_calls = bool(tools) and self.tool_format
        if "harmony" in (self.tool_format if reads_calls else "", self.reasoning_format):
            return AnswerParser(None, HarmonyParser(tools), is_parallel=is_parallel)
        if not reads_calls and not self.reasoning_format:
            return None
        marks = REASONING_MARKS.get(self.reasoning_format)
        splitter = ReasoningSplitter(marks, is_begun=is_in_reasoning) if marks is not None else None
        calls = TOOL_PARSERS[self.tool_format](tools) if reads_calls else None
        return AnswerParser(splitter, calls, is_parallel=is_parallel)

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends with the mark that opens the reasoning."""
        marks = REASONING_MARKS.get(self.reasoning_format)
        return marks is not None and self.reasoning_format != "harmony" and prompt.rstrip().endswith(marks.begin)

    def marks(self, *, has_tools: bool) -> tuple[str, ...]:
        """Return the marks that a parser must see, even where the vocabulary has them as special tokens."""
        names = _MARKS_THAT_MAY_BE_TOKENS.get(self.tool_format, ()) if has_tools else ()
        if self.reasoning_format == "harmony":
            return tuple(dict.fromkeys((*names, *_MARKS_THAT_MAY_BE_TOKENS["harmony"])))
        return (*names, *REASONING_MARKS.get(self.reasoning_format, ()))


def find_dialect(template: str, *, tool_format: str = AUTO, reasoning_format: str = AUTO) -> Dialect:
    """Return the formats of a model.

    Args:
        template: Its chat template; empty: it has none.
        tool_format: Key of TOOL_PARSERS, NONE, or AUTO to look into the template.
        reasoning_format: Key of REASONING_MARKS, NONE or AUTO.

    Raises:
        ConfigurationError: If a name is not known.
    """
    _check("tool_call_parser", tool_format, TOOL_PARSERS)
    _check("reasoning_parser", reasoning_format, REASONING_MARKS)
    found_tools = next((name for name, signs in _TOOL_SIGNS if all(sign in template for sign in signs)), "")
    found_reasoning = next((name for name, sign in _REASONING_SIGNS if sign in template), "")
    return Dialect(_chosen(tool_format, found_tools), _chosen(reasoning_format, found_reasoning))


def _check(setting: str, name: str, known: Mapping[str, object]) -> None:
    if name not in (AUTO, NONE, *known):
        raise ConfigurationError(f"{setting}: expected one of {', '.join((AUTO, NONE, *known))}, got {name!r}")


def _chosen(setting: str, found: str) -> str:
    return found if setting == AUTO else "" if setting == NONE else setting
