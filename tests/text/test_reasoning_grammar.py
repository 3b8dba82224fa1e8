"""Forms of answers of models that reason before they answer."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from baton.text.reasoning_parser import ReasoningMarkers, StructureKind, grammar_after_reasoning
from engine.tokens import tokenizer_text

MARKERS = ReasoningMarkers("<think>", "</think>")
END_ID = 256
TOKENIZER = LLTokenizer(tokenizer_text())
FORMS: list[tuple[StructureKind, str, str]] = [
    ("json_schema", '{"type": "object"}', '{"a":1}'),
    ("regex", "a/b+", "a/bb"),
    ("lark", 'start: a\na: "x" | "y"', "x"),
]


def is_sentence(grammar: str, token_ids: list[int]) -> bool:
    """Return whether tokens are a sentence of a grammar."""
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(("kind", "form", "answer"), FORMS)
@pytest.mark.parametrize("is_in_reasoning", [False, True])
def test_the_form_is_that_of_the_answer_alone(
    kind: StructureKind, form: str, answer: str, is_in_reasoning: bool
) -> None:
    """What is thought before may be anything; a model that has not begun to think may leave it."""
    grammar = grammar_after_reasoning(kind, form, MARKERS, {}, is_in_reasoning=is_in_reasoning)
    begin = "" if is_in_reasoning else "<think>"

    assert is_sentence(grammar, TOKENIZER.tokenize_str(f"{begin}1 < 2, {{so\n</think>\n\n{answer}"))
    assert not is_sentence(grammar, TOKENIZER.tokenize_str(f"{begin}hm</think>\nno {answer}"))
    assert is_sentence(grammar, TOKENIZER.tokenize_str(answer)) is not is_in_reasoning


@pytest.mark.parametrize(("kind", "form", "answer"), FORMS)
def test_a_mark_may_be_a_special_token(kind: StructureKind, form: str, answer: str) -> None:
    """Then its name, written in other tokens, is not the marker."""
    grammar = grammar_after_reasoning(kind, form, MARKERS, {"</think>": END_ID}, is_in_reasoning=True)
    thought, rest = TOKENIZER.tokenize_str("a </think> b"), TOKENIZER.tokenize_str(answer)

    assert is_sentence(grammar, [*thought, END_ID, *rest])
    assert not is_sentence(grammar, [*thought, *rest])
