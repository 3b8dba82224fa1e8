"""How a model writes tool calls and reasoning: detected in its chat template or set by hand, and read by parsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.errors import ConfigurationError
from baton.text.output_parser import OutputParser
from baton.text.reasoning_parser import (
    ReasoningMarkers,
    ReasoningParser,
    StructureKind,
    as_grammar_rule,
    grammar_after_reasoning,
)
from baton.text.tokenizer import Tokenizer
from baton.text.tool_calls.deepseek import DeepSeekParser, KimiParser
from baton.text.tool_calls.gemma import GemmaParser
from baton.text.tool_calls.grammar import CallGrammar
from baton.text.tool_calls.harmony import HarmonyParser
from baton.text.tool_calls.json_calls import HermesParser, NemotronParser
from baton.text.tool_calls.llama_json import LlamaJsonParser
from baton.text.tool_calls.mistral import MistralParser
from baton.text.tool_calls.notation import notation_of
from baton.text.tool_calls.parser import ToolParser
from baton.text.tool_calls.pythonic import PythonicParser
from baton.text.tool_calls.qwen_coder import GlmParser, MiniMaxParser, QwenCoderParser
from baton.text.tools import Tool

NONE = "none"
"""Setting: the model has no such format."""
AUTO = "auto"
"""Setting: the chat template says which format."""

TOOL_PARSERS: Mapping[str, type[ToolParser]] = {
    "deepseek": DeepSeekParser,
    "gemma": GemmaParser,
    "glm": GlmParser,
    "harmony": HarmonyParser,
    "hermes": HermesParser,
    "kimi": KimiParser,
    "llama_json": LlamaJsonParser,
    "minimax": MiniMaxParser,
    "mistral": MistralParser,
    "nemotron": NemotronParser,
    "pythonic": PythonicParser,
    "qwen_coder": QwenCoderParser,
}
"""Parsers of tool calls by the name of their format."""

REASONING_MARKERS: Mapping[str, ReasoningMarkers] = {
    "gemma": ReasoningMarkers("<|channel>thought\n", "<channel|>"),
    "harmony": ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>"),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "think": ReasoningMarkers("<think>", "</think>"),
}
"""What encloses reasoning, by the name of the format; harmony's reasoning is read by its tool parser."""

_MARKERS_THAT_MAY_BE_TOKENS: Mapping[str, tuple[str, ...]] = {
    "deepseek": tuple(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
    "gemma": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    "glm": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "hermes": ("<tool_call>", "</tool_call>"),
    "kimi": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "llama_json": ("<|python_tag|>",),
    "minimax": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "qwen_coder": ("<tool_call>", "</tool_call>"),
}

_TOOL_SIGNS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("harmony", ("<|channel|>", "<|start|>")),
    ("gemma", ("<|tool_call>",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("deepseek", ("<｜tool▁calls▁begin｜>",)),
    ("kimi", ("<|tool_calls_section_begin|>",)),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("qwen_coder", ("<tool_call>", "<function=")),
    ("nemotron", ("<TOOLCALL>",)),
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama_json", ("<|python_tag|>",)),
    ("llama_json", ('"parameters": ', '{"name": function name')),
)
"""Strings of a chat template that give a tool format away, the surest first."""

_REASONING_SIGNS: Sequence[tuple[str, str]] = (
    ("harmony", "<|channel|>analysis<|message|>"),
    ("gemma", "<|channel>"),
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

        `is_in_reasoning`: the prompt ends with the marker that opens it; `is_parallel`: calls after the first are given
        out.
        """
        reads_calls = bool(tools) and self.tool_format
        if "harmony" in (self.tool_format if reads_calls else "", self.reasoning_format):
            return OutputParser(None, HarmonyParser(tools), is_parallel=is_parallel)
        if not reads_calls and not self.reasoning_format:
            return None
        markers = REASONING_MARKERS.get(self.reasoning_format)
        splitter = ReasoningParser(markers, is_begun=is_in_reasoning) if markers is not None else None
        calls = TOOL_PARSERS[self.tool_format](tools) if reads_calls else None
        return OutputParser(splitter, calls, is_parallel=is_parallel)

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends with the marker that opens the reasoning."""
        markers = REASONING_MARKERS.get(self.reasoning_format)
        return markers is not None and self.reasoning_format != "harmony" and prompt.rstrip().endswith(markers.begin)

    def markers(self, *, has_tools: bool) -> tuple[str, ...]:
        """Return the markers that a parser must see, even where the vocabulary has them as special tokens."""
        names = _MARKERS_THAT_MAY_BE_TOKENS.get(self.tool_format, ()) if has_tools else ()
        if self.reasoning_format == "harmony":
            return tuple(dict.fromkeys((*names, *_MARKERS_THAT_MAY_BE_TOKENS["harmony"])))
        opens = ("<|channel>",) if self.reasoning_format == "gemma" else ()  # its marker is several tokens
        return (*names, *opens, *REASONING_MARKERS.get(self.reasoning_format, ()))


def detect_output_format(template: str, *, tool_format: str = AUTO, reasoning_format: str = AUTO) -> OutputFormat:
    """Return the formats of a model.

    Formats are keys of TOOL_PARSERS and REASONING_MARKERS, NONE, or AUTO: as the template has it. Raises
    ConfigurationError if a name is not known.
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
    """The output format of one model in the tokens of its vocabulary: makes parsers and grammars for its answers."""

    def __init__(self, tokenizer: Tokenizer, output_format: OutputFormat) -> None:
        self.output_format = output_format
        """How the model writes."""
        self.template_names = tokenizer.template_names
        """Names that the chat template may read."""
        self.grammar: CallGrammar | None = None
        """Makes the model call; None: it has no format of calls."""
        self._kept_token_ids = {
            has_tools: frozenset(tokenizer.special_tokens(output_format.markers(has_tools=has_tools)).values())
            for has_tools in (False, True)
        }
        self._special_tokens = tokenizer.special_tokens(output_format.markers(has_tools=True))
        self._markers = markers = REASONING_MARKERS.get(output_format.reasoning_format)
        self._reasoning_tokens = None
        if markers is not None:
            begin = tuple(tokenizer.encode(markers.begin, add_special_tokens=False))
            self._reasoning_tokens = begin, tokenizer.single_token(markers.end)
        if output_format.tool_format:
            is_separate = output_format.tool_format != "harmony"
            notation = notation_of(output_format.tool_format, tokenizer.template)
            self.grammar = CallGrammar(notation, self._special_tokens, markers if is_separate else None)

    def kept_token_ids(self, *, has_tools: bool) -> frozenset[int]:
        """Return the special tokens whose names a parser must see."""
        return self._kept_token_ids[has_tools]

    def parser(self, tools: Sequence[Tool], *, is_in_reasoning: bool, is_parallel: bool) -> OutputParser | None:
        """Return a parser of one answer; see `OutputFormat.parser`."""
        return self.output_format.parser(tools, is_in_reasoning=is_in_reasoning, is_parallel=is_parallel)

    def grammar_after_reasoning(self, kind: StructureKind, text: str, *, is_in_reasoning: bool) -> str | None:
        """Return the grammar of reasoning and then a structured answer; None if the model marks no reasoning."""
        if self._markers is None:
            return None
        return grammar_after_reasoning(kind, text, self._markers, self._special_tokens, is_in_reasoning=is_in_reasoning)

    def structure_or_calls(
        self, kind: StructureKind, text: str, tools: Sequence[Tool], *, is_parallel: bool, is_in_reasoning: bool
    ) -> str | None:
        """Return the grammar of an answer that is structured or calls; None if the model's calls do not allow it."""
        if self.grammar is None or not self.grammar.can_replace(is_json=kind == "json_schema"):
            return None
        structure = as_grammar_rule(kind, text)
        return self.grammar.structure_or_calls(
            structure, tools, is_parallel=is_parallel, is_in_reasoning=is_in_reasoning
        )

    def count_reasoning(self, token_ids: Sequence[int], *, is_in_reasoning: bool) -> int | None:
        """Return the number of tokens of an answer's reasoning, markers not counted.

        Returns None if the model marks no reasoning, or its closing marker is no token of its own.
        """
        if self._reasoning_tokens is None or self._reasoning_tokens[1] is None:
            return None
        begin, end = self._reasoning_tokens
        start = 0 if is_in_reasoning else len(begin)
        if tuple(token_ids[:start]) != begin[:start]:
            return 0
        rest = list(token_ids[start:])
        return rest.index(end) if end in rest else len(rest)
