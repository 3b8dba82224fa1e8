"""How a model writes calls and reasoning: found out from its template and tokens, or set by hand.

Reads the answers of one model: what its output_format means for its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.errors import ConfigurationError
from baton.text.output_parser import OutputParser
from baton.text.reasoning_grammar import StructureKind, as_grammar_rule, grammar_after_reasoning
from baton.text.reasoning_parser import ReasoningMarkers, ReasoningParser
from baton.text.tokenizer import Tokenizer
from baton.text.tool_calls.deepseek import DeepSeekParser
from baton.text.tool_calls.grammar import CallGrammar
from baton.text.tool_calls.harmony import HarmonyParser
from baton.text.tool_calls.json_calls import HermesParser
from baton.text.tool_calls.llama_json import LlamaJsonParser
from baton.text.tool_calls.mistral import MistralParser
from baton.text.tool_calls.notation import notation_of
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

REASONING_MARKERS: Mapping[str, ReasoningMarkers] = {
    "harmony": ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>"),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "think": ReasoningMarkers("<think>", "</think>"),
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
class OutputFormat:
    """The formats of one model; an empty name stands for none."""

    tool_format: str = ""
    """Key of TOOL_PARSERS."""
    reasoning_format: str = ""
    """Key of REASONING_MARKERS."""

    def parser(
        self, tools: Sequence[Tool], *, is_in_reasoning: bool = False, is_parallel: bool = True
    ) -> OutputParser | None:
        """Return a parser of one answer; None if all of it is content.

        Args:
            tools: What may be called; none: calls are content.
            is_in_reasoning: Whether the prompt ends with the mark that opens the reasoning.
            is_parallel: Whether calls after the first are given out.
        """
        reads_calls = bool(tools) and self.tool_format
        if "harmony" in (self.tool_format if reads_calls else "", self.reasoning_format):
            return OutputParser(None, HarmonyParser(tools), is_parallel=is_parallel)
        if not reads_calls and not self.reasoning_format:
            return None
        marks = REASONING_MARKERS.get(self.reasoning_format)
        splitter = ReasoningParser(marks, is_begun=is_in_reasoning) if marks is not None else None
        calls = TOOL_PARSERS[self.tool_format](tools) if reads_calls else None
        return OutputParser(splitter, calls, is_parallel=is_parallel)

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends with the mark that opens the reasoning."""
        marks = REASONING_MARKERS.get(self.reasoning_format)
        return marks is not None and self.reasoning_format != "harmony" and prompt.rstrip().endswith(marks.begin)

    def marks(self, *, has_tools: bool) -> tuple[str, ...]:
        """Return the marks that a parser must see, even where the vocabulary has them as special tokens."""
        names = _MARKS_THAT_MAY_BE_TOKENS.get(self.tool_format, ()) if has_tools else ()
        if self.reasoning_format == "harmony":
            return tuple(dict.fromkeys((*names, *_MARKS_THAT_MAY_BE_TOKENS["harmony"])))
        return (*names, *REASONING_MARKERS.get(self.reasoning_format, ()))


def detect_output_format(template: str, *, tool_format: str = AUTO, reasoning_format: str = AUTO) -> OutputFormat:
    """Return the formats of a model.

    Args:
        template: Its chat template; empty: it has none.
        tool_format: Key of TOOL_PARSERS, NONE, or AUTO to look into the template.
        reasoning_format: Key of REASONING_MARKERS, NONE or AUTO.

    Raises:
        ConfigurationError: If a name is not known.
    """
    _check("tool_call_parser", tool_format, TOOL_PARSERS)
    _check("reasoning_parser", reasoning_format, REASONING_MARKERS)
    found_tools = next((name for name, signs in _TOOL_SIGNS if all(sign in template for sign in signs)), "")
    found_reasoning = next((name for name, sign in _REASONING_SIGNS if sign in template), "")
    return OutputFormat(_chosen(tool_format, found_tools), _chosen(reasoning_format, found_reasoning))


def _check(setting: str, name: str, known: Mapping[str, object]) -> None:
    if name not in (AUTO, NONE, *known):
        raise ConfigurationError(f"{setting}: expected one of {', '.join((AUTO, NONE, *known))}, got {name!r}")


def _chosen(setting: str, found: str) -> str:
    return found if setting == AUTO else "" if setting == NONE else setting


class ModelOutputFormat:
    """Knows one model's output_format and tokenizer."""

    def __init__(self, tokenizer: Tokenizer, output_format: OutputFormat) -> None:
        self.output_format = output_format
        """The model's formats."""
        self.template_names = tokenizer.template_names
        """Names that the chat template may read."""
        self._kept_token_ids = {
            has_tools: frozenset(tokenizer.special_tokens(output_format.marks(has_tools=has_tools)).values())
            for has_tools in (False, True)
        }
        marks = REASONING_MARKERS.get(output_format.reasoning_format)
        self._marks = marks
        self._special_tokens = tokenizer.special_tokens(output_format.marks(has_tools=True))
        self._reasoning_tokens = None
        if marks is not None:
            begin = tuple(tokenizer.encode(marks.begin, add_special_tokens=False))
            self._reasoning_tokens = begin, tokenizer.single_token(marks.end)
        self.grammar: CallGrammar | None = None
        """Makes the model call; None: it has no format of calls."""
        if output_format.tool_format:
            is_separate = output_format.tool_format != "harmony"
            notation = notation_of(output_format.tool_format, tokenizer.template)
            self.grammar = CallGrammar(notation, self._special_tokens, marks if is_separate else None)

    def kept_token_ids(self, *, has_tools: bool) -> frozenset[int]:
        """Return the special tokens whose names a parser must see."""
        return self._kept_token_ids[has_tools]

    def parser(self, tools: Sequence[Tool], *, is_in_reasoning: bool, is_parallel: bool) -> OutputParser | None:
        """Return a parser of one answer; see `OutputFormat.parser`."""
        return self.output_format.parser(tools, is_in_reasoning=is_in_reasoning, is_parallel=is_parallel)

    def grammar_after_reasoning(self, kind: StructureKind, text: str, *, is_in_reasoning: bool) -> str | None:
        """Return the grammar of reasoning and then a form, or None if the model marks no reasoning."""
        if self._marks is None:
            return None
        return grammar_after_reasoning(kind, text, self._marks, self._special_tokens, is_in_reasoning=is_in_reasoning)

    def structure_or_calls(
        self, kind: StructureKind, text: str, tools: Sequence[Tool], *, is_parallel: bool, is_in_reasoning: bool
    ) -> str | None:
        """Return the grammar of an answer that has a form or is calls; None if the model's calls do not allow it."""
        if self.grammar is None or not self.grammar.can_replace(is_json=kind == "json_schema"):
            return None
        form = as_grammar_rule(kind, text)
        return self.grammar.structure_or_calls(form, tools, is_parallel=is_parallel, is_in_reasoning=is_in_reasoning)

    def count_reasoning(self, token_ids: Sequence[int], *, is_in_reasoning: bool) -> int | None:
        """Return the number of tokens of an answer's reasoning, marks not counted.

        Args:
            token_ids: The answer.
            is_in_reasoning: Whether the prompt ends with the mark that opens the reasoning.

        Returns:
            None if the model marks no reasoning, or its closing mark is no token of its own.
        """
        if self._reasoning_tokens is None or self._reasoning_tokens[1] is None:
            return None
        begin, end = self._reasoning_tokens
        start = 0 if is_in_reasoning else len(begin)
        if tuple(token_ids[:start]) != begin[:start]:
            return 0
        rest = list(token_ids[start:])
        return rest.index(end) if end in rest else len(rest)
