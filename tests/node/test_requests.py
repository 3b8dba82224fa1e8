"""Sampling parameters between messages and the engine."""

from __future__ import annotations

import pytest

from baton.engine.request import ConstraintKind, SamplingParams, StructuredOutput
from baton.errors import InvalidFieldError
from baton.node.requests import sampling_from_proto
from baton.v1 import generation_pb2
from node.sampling import sampling_to_proto


def test_parameters_survive_the_wire() -> None:
    """Each field with a value of its own."""
    params = SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=-5,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={3: 1.0, 4: -2.0},
        stop_token_ids=frozenset({8, 9}),
        ignore_eos=True,
        min_tokens=2,
        max_tokens=6,
        num_top_logprobs=0,
        structured_output=StructuredOutput("json_schema", '{"type": "object"}'),
    )

    assert sampling_from_proto(sampling_to_proto(params)) == params


def test_an_empty_message_means_the_defaults() -> None:
    """No constraint, temperature 1, no limit."""
    assert sampling_from_proto(generation_pb2.SamplingParameters()) == SamplingParams()


@pytest.mark.parametrize("kind", ["json_schema", "regex", "lark"])
def test_each_kind_of_constraint_keeps_its_kind(kind: ConstraintKind) -> None:
    """On the wire it is the name of the set field."""
    message = sampling_to_proto(SamplingParams(structured_output=StructuredOutput(kind, "ä+")))

    assert message.structured_output.WhichOneof("constraint") == kind
    assert sampling_from_proto(message).structured_output == StructuredOutput(kind, "ä+")


def test_a_constraint_that_is_announced_and_not_given_is_refused() -> None:
    """Without constraint the output would be free: not what the caller asked for."""
    message = generation_pb2.SamplingParameters(structured_output=generation_pb2.StructuredOutput())

    with pytest.raises(InvalidFieldError, match="structured_output: expected one of json_schema, regex, lark"):
        sampling_from_proto(message)
