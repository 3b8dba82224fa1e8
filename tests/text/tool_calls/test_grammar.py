"""Grammars that make a model call: whatever they allow is read as calls, and nothing else is allowed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import llguidance
import llguidance.hf
import pytest

from baton.text.output_format import TOOL_PARSERS, OutputFormat
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, Reasoning, joined
from baton.text.reasoning_parser import ReasoningMarkers, as_grammar_rule
from baton.text.tool_calls.grammar import CallGrammar
from baton.text.tool_calls.notation import notation_of
from baton.text.tools import Tool
from text.tokenizer_folders import byte_level
from text.tool_calls.recordings import NOW, WEATHER

BOOK = Tool(
    "book-it",
    {
        "type": "object",
        "properties": {
            "seats": {"type": "integer", "minimum": 0, "maximum": 99},
            "class": {"type": "string", "enum": ["first", "second"]},
            "way": {"$ref": "#/$defs/way"},
        },
        "required": ["class", "seats"],
        "additionalProperties": False,
        "$defs": {"way": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    },
)
THINK = ReasoningMarkers("<think>", "</think>")
SPECIAL = (
    *("[TOOL_CALLS]", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|message|>", "<|channel|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)


class Vocabulary:
    """A tokenizer whose markers are special tokens or mere text."""

    def __init__(self, special: Sequence[str]) -> None:
        self.tokenizer: Any = byte_level()
        self.tokenizer.add_tokens(list(special), special_tokens=True)
        self.special = {name: self.tokenizer.convert_tokens_to_ids(name) for name in special}
        self._matching = llguidance.hf.from_tokenizer(self.tokenizer)

    def matcher(self, lark: str) -> Any:
        """Return a matcher at the beginning of a grammar, which must compile without a warning."""
        matcher = llguidance.LLMatcher(self._matching, lark)
        assert not matcher.is_error(), matcher.get_error()
        assert matcher.get_grammar_warnings() == []
        return matcher

    def allows(self, lark: str, text: str) -> bool:
        """Return whether a text is a sentence of a grammar."""
        token_ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        matcher = self.matcher(lark)
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@cache
def _vocabulary(has_special: bool) -> Vocabulary:
    return Vocabulary(SPECIAL if has_special else ())


def _wander(vocabulary: Vocabulary, lark: str, seed: int, max_tokens: int = 4000) -> str | None:
    """Return a sentence of a grammar, its tokens drawn at random; None if it does not end in time."""
    draw = random.Random(seed)
    matcher, token_ids, tokenizer = vocabulary.matcher(lark), [], vocabulary.tokenizer
    end = tokenizer.eos_token_id
    plain = [index for index in range(256) if 0x20 <= ord(tokenizer.convert_ids_to_tokens(index)) < 0x7F]
    closing = tokenizer.convert_tokens_to_ids(['"', "}", "]", "/", "<", "Ċ"])
    for _ in range(max_tokens):
        mask = matcher.compute_bitmask()
        allowed = [index for index in range(len(mask) * 8) if mask[index // 8] >> index % 8 & 1]
        if end in allowed:
            return str(tokenizer.decode(token_ids, skip_special_tokens=False))
        likely = [index for index in allowed if index in closing] or [index for index in allowed if index in plain]
        token_id = draw.choice(likely if likely and draw.random() < 0.6 else allowed)
        matcher.consume_token(token_id)
        token_ids.append(token_id)
    return None


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("tool_format", TOOL_PARSERS)
def test_what_a_grammar_allows_is_read_as_calls(tool_format: str, has_special: bool) -> None:
    """By the format's parser: known names, and arguments that have what their schema requires."""
    vocabulary = _vocabulary(has_special)
    grammar = CallGrammar(notation_of(tool_format, ""), vocabulary.special, None)
    lark = grammar.forced((WEATHER, NOW, BOOK), is_parallel=False, is_in_reasoning=False)
    num_read = 0
    for seed in range(6):
        text = _wander(vocabulary, lark, seed)
        if text is None:
            continue
        parser = TOOL_PARSERS[tool_format]((WEATHER, NOW, BOOK))
        parts = [*parser.push(text), *parser.finish()]
        (name,) = [part.name for part in parts if isinstance(part, CallStart)]
        arguments = json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))
        assert not any(isinstance(part, Content) for part in parts), text
        if name == "book-it":
            assert arguments["class"] in ("first", "second")
            assert 0 <= arguments["seats"] <= 99
        if name == "get_weather":
            assert isinstance(arguments["city"], str)
        num_read += 1

    assert num_read > 0


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
def test_strict_tools_leave_text_free_and_hold_calls_to_their_schemas(has_special: bool) -> None:
    """Only those of strict tools."""
    vocabulary = _vocabulary(has_special)
    grammar = CallGrammar(notation_of("hermes", ""), vocabulary.special, None)
    lark = grammar.free((replace(WEATHER, is_strict=True), NOW))

    def call(name: str, arguments: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'

    assert vocabulary.allows(lark, "a < b, and nothing is called")
    assert vocabulary.allows(
        lark, "Hm.\n" + call("get_weather", '{"city": "Paris"}') + "\n" + call("now", '{"x": [1]}') + " Done."
    )
    assert not vocabulary.allows(lark, call("get_weather", '{"city": 1}'))
    assert not vocabulary.allows(lark, call("get_weather", "{}"))
    assert not vocabulary.allows(lark, call("get_weather", '{"city": "Paris", "country": "FR"}'))
    assert not vocabulary.allows(lark, call("other", "{}"))


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
def test_tagged_calls_of_tools_that_are_not_strict_have_any_parameters(has_special: bool) -> None:
    """Beside one that is."""
    vocabulary = _vocabulary(has_special)
    lark = CallGrammar(notation_of("qwen_coder", ""), vocabulary.special, None).free(
        (replace(BOOK, is_strict=True), WEATHER)
    )

    def call(name: str, **arguments: str) -> str:
        tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"

    assert vocabulary.allows(lark, "Hm. " + call("get_weather") + call("get_weather", days="2", city="Paris <3"))
    assert vocabulary.allows(lark, call("book-it", seats="3", **{"class": "first"}))
    assert not vocabulary.allows(lark, call("book-it", city="Paris"))


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
def test_glm_writes_tags_with_or_without_line_ends_as_its_template_does(has_special: bool) -> None:
    """Those of GLM 4.7 have none."""
    vocabulary = _vocabulary(has_special)
    call = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
    for template, text in (("", call), ("<tool_call>{function-name}<arg_key>", call.replace("\n", ""))):
        grammar = CallGrammar(notation_of("glm", template), vocabulary.special, None)
        lark = grammar.forced((WEATHER,), is_parallel=True, is_in_reasoning=False)

        assert vocabulary.allows(lark, text)
        assert not vocabulary.allows(lark, text.replace("city", "country"))
        assert not vocabulary.allows(lark, call if template else call.replace("\n", ""))


def test_tagged_strings_that_may_be_null_are_written_as_they_are() -> None:
    """As the parser reads them: without quotes."""
    vocabulary = _vocabulary(False)
    tool = Tool("note", {"type": "object", "properties": {"text": {"type": ["string", "null"]}}})
    lark = CallGrammar(notation_of("qwen_coder", ""), vocabulary.special, None).forced(
        (tool,), is_parallel=True, is_in_reasoning=False
    )

    for value, meant in (("Paris", "Paris"), ("null", None), ('"Paris"', '"Paris"')):
        text = f"<tool_call>\n<function=note>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>"
        parser = TOOL_PARSERS["qwen_coder"]((tool,))
        parts = [*parser.push(text), *parser.finish()]
        arguments = json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))
        assert vocabulary.allows(lark, text)
        assert arguments == {"text": meant}


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
def test_an_answer_has_its_form_or_is_calls(has_special: bool, thought: str) -> None:
    """Not both, and nothing else; after reasoning too."""
    vocabulary = _vocabulary(has_special)
    grammar = CallGrammar(notation_of("hermes", ""), vocabulary.special, THINK)
    form = as_grammar_rule("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}}}')
    tools = (replace(WEATHER, is_strict=True), NOW)
    lark = grammar.structure_or_calls(form, tools, is_parallel=True, is_in_reasoning=False)
    answer, call = '{"name":"<tool_call>"}', '<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>'

    assert grammar.can_replace(is_json=True)
    assert grammar.can_replace(is_json=False) == has_special
    assert vocabulary.allows(lark, thought + answer) != has_special  # which is a token there, and no text
    assert vocabulary.allows(lark, thought + '{"name":"x"}')
    assert vocabulary.allows(lark, f"{thought}{call}\n{call}")
    assert not vocabulary.allows(lark, thought + call.replace("now", "get_weather"))
    assert not vocabulary.allows(lark, f"{thought}{answer}\n{call}")
    assert not vocabulary.allows(lark, thought + "Let me see.")


@pytest.mark.parametrize("has_special", [True, False], ids=["special", "text"])
def test_a_model_that_reasons_may_do_so_before_it_is_made_to_call(has_special: bool) -> None:
    """And must end its reasoning where the prompt opened it."""
    vocabulary = _vocabulary(has_special)
    grammar = CallGrammar(notation_of("hermes", ""), vocabulary.special, THINK)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'

    def allows(text: str, *, is_in_reasoning: bool) -> bool:
        return vocabulary.allows(grammar.forced((NOW,), is_parallel=True, is_in_reasoning=is_in_reasoning), text)

    assert allows(call, is_in_reasoning=False)
    assert allows(f"<think>\nhm\n</think>\n\n{call}\n{call}", is_in_reasoning=False)
    assert allows(f"hm</think>\n\n{call}", is_in_reasoning=True)
    assert not allows("hm</think>\n\nno", is_in_reasoning=True)
    parser = OutputFormat("hermes", "think").parser((NOW,), is_in_reasoning=True)
    assert parser is not None
    assert joined([*parser.push(f"hm</think>\n\n{call}"), *parser.finish()]) == [
        Reasoning("hm"),
        CallStart(0, "now"),
        CallArguments(0, "{}"),
        CallEnd(0),
    ]
