"""Python imports this before anything else: breaks a promise of the gateway, the one that BATON_PLANTED names.

Tests of the checker run a gateway with it; see `system/histories/test_histories.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def _plant(name: str) -> None:
    from baton.gateway.access import admission
    from baton.gateway.cluster.token_stream import Attempt
    from baton.gateway.generation import generator

    take_tokens, make = Attempt.take_tokens, Attempt.__init__
    result_of, take_output = generator._result, generator._Output.take

    def make_resumed(attempt: Attempt, output: list[int], *arguments: Any, **options: Any) -> None:
        make(attempt, output, *arguments, **options)
        attempt.is_resumed = bool(output)  # type: ignore[attr-defined]

    def take_with_gap(attempt: Any, now: float, index: int, token_ids: Sequence[int], *rest: Any) -> None:
        if attempt.is_resumed and len(token_ids) + len(attempt._output) < attempt._max_tokens:
            attempt.is_resumed = False
            attempt._output += token_ids  # counted, and never told
            return
        take_tokens(attempt, now, index, token_ids, *rest)

    def take_doubled(attempt: Any, now: float, index: int, token_ids: Sequence[int], *rest: Any) -> None:
        if attempt.is_resumed:
            attempt.is_resumed = False
            attempt._take(attempt._output[-1:], ())
        take_tokens(attempt, now, index, token_ids, *rest)

    def take_reversed(output: Any, token_ids: Sequence[int], *rest: Any) -> bool:
        held = [*getattr(output, "held", ()), *token_ids]
        if len(held) == 1:
            output.held = held
            return False
        output.held = []
        return take_output(output, held[::-1], *rest)

    def miscount(generation: Any, *rest: Any) -> Any:
        result = result_of(generation, *rest)
        return result._replace(num_completion_tokens=result.num_completion_tokens + (generation.num_attempts > 1))

    if name in ("gap", "double"):
        Attempt.__init__ = make_resumed  # type: ignore[method-assign]
        Attempt.take_tokens = take_with_gap if name == "gap" else take_doubled  # type: ignore[method-assign]
    elif name == "order":
        generator._Output.take = take_reversed  # type: ignore[method-assign]
    elif name == "usage":
        generator._result = miscount
    elif name == "id":
        admission.accept_request_id = lambda given: given or "the-only-one"
    else:
        raise ValueError(f"BATON_PLANTED: {name!r} is unknown")


if os.environ.get("BATON_PLANTED"):
    _plant(os.environ["BATON_PLANTED"])
