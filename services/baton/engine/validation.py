"""Refuses requests that a model cannot serve, before anything is reserved for them."""

from __future__ import annotations

from baton.engine.runners.base import ModelInfo
from baton.engine.sequence import EngineRequest, Purpose
from baton.errors import InvalidFieldError


def check_request(request: EngineRequest, info: ModelInfo) -> None:
    """Check a request against a model.

    Raises:
        InvalidFieldError: Naming the first field that cannot be served.
    """
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    if not request.prompt_token_ids:
        raise InvalidFieldError("prompt_token_ids", "expected 1 token or more")
    if num_tokens >= info.max_context_tokens:
        raise InvalidFieldError(
            "prompt_token_ids", f"{num_tokens} tokens leave no room in a context of {info.max_context_tokens}"
        )
    for token_id in (*request.prompt_token_ids, *request.output_token_ids):
        if not 0 <= token_id < info.vocabulary_size:
            raise InvalidFieldError(
                "prompt_token_ids", f"token id {token_id} is not in 0 to {info.vocabulary_size - 1}"
            )
    request.params.check(info.vocabulary_size)
    if request.is_scored and request.purpose is not Purpose.GENERATE:
        raise InvalidFieldError("prompt_logprobs", "expected a prompt that is computed on the node that generates")
    if (request.params.structured_output is None) != (request.constraint is None):
        raise InvalidFieldError("structured_output", "this node has not compiled it and cannot enforce it")
