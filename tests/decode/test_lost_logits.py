"""A device that gives no finite logits, seen from a client."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest

from baton.capacity.hardware import PRESETS
from baton.engine.runners.base import NOT_FINITE, Span
from baton.engine.runners.mock.passes import MockLogits
from baton.rpc.status import error_info
from decode.pair import Pair, follow, generate, request_of, with_pair
from engine.rig import INFO, VOCABULARY_SIZE, WaitingMockRunner, prompt_of

POISON = 9


class Spoilt(MockLogits):
    """Logits without a best token in any row."""

    def argmax(self) -> list[int]:
        """Return no token."""
        return [NOT_FINITE] * len(super().argmax())


class SpoilingRunner(WaitingMockRunner):
    """A runner that gives no finite logits while a sequence ends with a certain token."""

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Compute as ever, and spoil what came out."""
        logits = super().forward(spans)
        is_spoilt = any(span.token_ids[-1] == POISON for span in spans)
        return Spoilt(logits.argmax(), VOCABULARY_SIZE) if is_spoilt else logits


def test_a_client_is_told_the_reason_and_gets_no_token() -> None:
    """Status INTERNAL; the next request is served."""
    runner = SpoilingRunner(
        INFO, PRESETS["h200"], num_blocks=64, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
    )

    async def client(pair: Pair) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(pair.stub.Generate(request_of([5, 1, POISON], prefill_node_id=""), timeout=20))

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert info is not None
        assert info.reason == "NON_FINITE_LOGITS"
        answer = await generate(pair, request_of(prompt_of(7), prefill_node_id="", request_id="next"))
        assert len(answer.token_ids) == 8

    with_pair(client, decode_runner=runner)
