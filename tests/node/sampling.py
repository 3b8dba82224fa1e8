"""Sampling parameters as a gateway sends them."""

from __future__ import annotations

from baton.engine.request import SamplingParams, StructuredOutput
from baton.v1 import generation_pb2


def sampling_to_proto(params: SamplingParams) -> generation_pb2.SamplingParameters:
    """Return the message of parameters."""
    return generation_pb2.SamplingParameters(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias,
        stop_token_ids=sorted(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        min_token_count=params.min_tokens,
        max_token_count=params.max_tokens,
        top_logprob_count=params.num_top_logprobs,
        prompt_logprob_count=params.num_prompt_logprobs,
        structured_output=None
        if params.structured_output is None
        else _structured_output_to_proto(params.structured_output),
    )


def _structured_output_to_proto(structured_output: StructuredOutput) -> generation_pb2.StructuredOutput:
    return generation_pb2.StructuredOutput(**{structured_output.kind: structured_output.text})
