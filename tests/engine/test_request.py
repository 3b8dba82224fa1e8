"""Bounds of sampling parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from baton.engine.request import MAX_CONSTRAINT_BYTES, SamplingParams, StructuredOutput
from baton.errors import InvalidFieldError

VOCABULARY_SIZE = 100

ALLOWED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 100.0},
    {"top_p": 1e-9},
    {"top_k": 0},
    {"top_k": 10**9},
    {"min_p": 1.0},
    {"seed": -(2**63)},
    {"seed": 2**63 - 1},
    {"repetition_penalty": 10.0},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"logit_bias": {0: -100.0, VOCABULARY_SIZE - 1: 100.0}},
    {"stop_token_ids": frozenset(range(64))},
    {"min_tokens": 3, "max_tokens": 3},
    {"min_tokens": 3},
    {"num_top_logprobs": 0},
    {"num_top_logprobs": 20},
    {"structured_output": StructuredOutput("regex", "a" * MAX_CONSTRAINT_BYTES)},
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 100.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": math.nan}),
    ("top_k", {"top_k": -1}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("seed", {"seed": 2**63}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": 10.5}),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("presence_penalty", {"presence_penalty": math.nan}),
    ("frequency_penalty", {"frequency_penalty": -2.1}),
    ("min_tokens", {"min_tokens": -1}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("min_tokens", {"min_tokens": 4, "max_tokens": 3}),
    ("top_logprobs", {"num_top_logprobs": -1}),
    ("top_logprobs", {"num_top_logprobs": 21}),
    ("logit_bias[3]", {"logit_bias": {3: 100.5}}),
    ("logit_bias[3]", {"logit_bias": {3: math.nan}}),
    ("logit_bias", {"logit_bias": {VOCABULARY_SIZE: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(1025), 1.0)}),
    ("stop_token_ids", {"stop_token_ids": frozenset({VOCABULARY_SIZE})}),
    ("stop_token_ids", {"stop_token_ids": frozenset({-1})}),
    ("stop_token_ids", {"stop_token_ids": frozenset(range(65))}),
    ("structured_output.lark", {"structured_output": StructuredOutput("lark", "")}),
    (
        "structured_output.regex",
        {"structured_output": StructuredOutput("regex", "ä" * (MAX_CONSTRAINT_BYTES // 2 + 1))},
    ),
]


@pytest.mark.parametrize("values", ALLOWED)
def test_values_up_to_their_bounds_are_allowed(values: dict[str, Any]) -> None:
    """Bounds of generation.proto, included where it includes them."""
    SamplingParams(**values).check(VOCABULARY_SIZE)


@pytest.mark.parametrize(("field", "values"), REFUSED)
def test_values_out_of_bounds_are_refused_by_name(field: str, values: dict[str, Any]) -> None:
    """NaN is out of every bound."""
    with pytest.raises(InvalidFieldError) as caught:
        SamplingParams(**values).check(VOCABULARY_SIZE)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "needs_rows"),
    [
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 3}, False),
        ({}, True),
        ({"temperature": 0.0, "num_top_logprobs": 0}, True),
        ({"temperature": 0.0, "min_tokens": 1}, False),
        ({"temperature": 0.0, "structured_output": StructuredOutput("regex", "a")}, True),
        ({"temperature": 0.0, "logit_bias": {1: 1.0}}, True),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, True),
        ({"temperature": 0.0, "presence_penalty": 0.1}, True),
        ({"temperature": 0.0, "frequency_penalty": -0.1}, True),
    ],
)
def test_only_a_plain_greedy_choice_needs_no_logits_on_the_host(values: dict[str, Any], needs_rows: bool) -> None:
    """Its token is the framework's argmax."""
    assert SamplingParams(**values).needs_rows is needs_rows
