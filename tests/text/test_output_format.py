"""How a model's formats are found out."""

from __future__ import annotations

import pytest

from baton.errors import ConfigurationError
from baton.text.output_format import NONE, OutputFormat, detect_output_format
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning, joined
from baton.text.tools import Tool

NOW = Tool("now", {"type": "object"})


def read(parser: OutputParser, text: str) -> list[OutputPart]:
    """Return what a whole text is read as."""
    return joined([*parser.push(text), *parser.finish()])


@pytest.mark.parametrize(
    ("template", "tool_format", "reasoning_format"),
    [
        ("{{ '<tool_call>' }}{# Qwen 2.5 #}", "hermes", ""),
        ("<tool_call> </think> {# Qwen 3 #}", "hermes", "think"),
        ("<tool_call>\n<function=example>", "qwen_coder", ""),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key> <think>", "glm", "think"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi", ""),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<｜tool▁calls▁begin｜> </think>", "deepseek", "think"),
        ("assistant<think>", "", "think"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "harmony", "harmony"),
        ("<|python_tag|>", "llama_json", ""),
        ("<minimax:tool_call> ]~b]ai\n<think>\n", "minimax", "think"),
        ("<|tool_call>call: <|channel>thought\\n<channel|>", "gemma", "gemma"),
        ("<AVAILABLE_TOOLS> <TOOLCALL>[{{ </think> {# Nemotron Nano 2 #}", "nemotron", "think"),
        ("<tool_call>\n<function=example_function_name> <think> {# Nemotron 3 Nano #}", "qwen_coder", "think"),
        ("<tool_call>\\n[\\n  {# Falcon #}", "hermes", ""),
        ("<|python_start|>", "pythonic", ""),
        ("<|im_start|>", "", ""),
        ("", "", ""),
    ],
)
def test_formats_are_found_in_the_template(template: str, tool_format: str, reasoning_format: str) -> None:
    """By the markers that the model's own template writes."""
    assert detect_output_format(template) == OutputFormat(tool_format, reasoning_format)


def test_formats_can_be_set() -> None:
    """Or said not to exist."""
    assert detect_output_format("<tool_call></think>", tool_format="mistral", reasoning_format=NONE) == OutputFormat(
        "mistral", ""
    )
    assert detect_output_format("<tool_call></think>", tool_format=NONE) == OutputFormat("", "think")
    with pytest.raises(ConfigurationError, match=r"tool_call_parser: expected one of auto, none, .*, got 'x'"):
        detect_output_format("", tool_format="x")
    with pytest.raises(ConfigurationError, match="reasoning_parser"):
        detect_output_format("", reasoning_format="x")


def test_reasoning_comes_before_calls() -> None:
    """A marker of a call within the reasoning is reasoning."""
    parser = OutputFormat("hermes", "think").parser([NOW])

    assert parser is not None
    assert read(
        parser, '<think>a <tool_call> b</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    ) == [
        Reasoning("a <tool_call> b"),
        CallStart(0, "now"),
        CallArguments(0, "{}"),
        CallEnd(0),
    ]


def test_without_tools_calls_are_content() -> None:
    """And without a format of reasoning nothing is read at all."""
    parser = OutputFormat("hermes", "think").parser([])

    assert parser is not None
    assert read(parser, "<tool_call>") == [Content("<tool_call>")]
    assert OutputFormat("hermes", "").parser([]) is None


def test_calls_after_the_first_can_be_left_out() -> None:
    """Where the request wants one at a time."""
    parser = OutputFormat("hermes", "").parser([NOW], is_parallel=False)

    assert parser is not None
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 2
    assert read(parser, text) == [CallStart(0, "now"), CallArguments(0, "{}"), CallEnd(0)]


@pytest.mark.parametrize(
    ("prompt", "is_open"), [("a<think>\n", True), ("a<think>\n\n</think>\n\n", False), ("<think> x", False)]
)
def test_a_prompt_may_open_the_reasoning(prompt: str, is_open: bool) -> None:
    """As templates of models do that always reason."""
    assert OutputFormat("", "think").opens_reasoning(prompt) is is_open
    assert not OutputFormat("", "").opens_reasoning(prompt)
