"""Nodes with caches of different formats: the decode node gets the prefill node's KV, converted and no more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from baton.decode.kv_stream.reader import Timeouts
from baton.engine.runners.base import LayerKv, Runner, Span
from baton.kv.kv_format import KvDtype
from baton.wire.kv import dtype_to_proto
from checkpoints import checkpoint
from decode.pair import Pair, Settings, generate, request_of, with_pair
from engine.rig import prompt_of
from exactness.loading import Framework, load_runner

PROMPT = prompt_of(45)
NUM_TOKENS = 8
PATIENT = Timeouts(60.0, 60.0)

PAIRS: list[tuple[Framework, str, Framework, str, str]] = [
    ("torch", "bfloat16", "mlx", "float32", "bfloat16"),
    ("mlx", "float16", "torch", "float32", "float16"),
    ("torch", "float32", "mlx", "bfloat16", "bfloat16"),
    ("mlx", "float32", "torch", "float16", "float16"),
    ("mlx", "float16", "torch", "bfloat16", "bfloat16"),
]
"""Prefill node and its cache, decode node and its cache, and in what frames travel."""


def numbers(data: bytes | memoryview, dtype: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return numbers of a cache's format."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4" if dtype == "float32" else "<f2").astype("<f4")


def converted(data: bytes | memoryview, source: str, target: str) -> bytes:
    """Return numbers of one cache's format in another's, rounded to nearest, ties to even."""
    values = numbers(data, source)
    if target != "bfloat16":
        return values.astype("<f4" if target == "float32" else "<f2").tobytes()
    kept = (values.view("<u4") >> 16).astype("<u2")
    rest = values.view("<u4") & 0xFFFF
    return (kept + ((rest > 0x8000) | ((rest == 0x8000) & (kept & 1 == 1)))).astype("<u2").tobytes()


def greedy_after(prefill: Runner, decode: Runner, first: str, second: str) -> list[int]:
    """Return what the decode node says after the prefill node's KV and first token, without any of Baton's wire.

    The prompt is computed in the passes of an engine: another order of sums rounds to other numbers of 16 bits.
    """
    table = list(range(-(-(len(PROMPT) + NUM_TOKENS) // prefill.block_tokens)))
    step = Settings().max_step_tokens
    for start in range(0, len(PROMPT), step):
        logits = prefill.forward([Span(list(PROMPT[start : start + step]), start, table, needs_logits=True)])
    tokens: list[int] = [int(logits.rows()[0].argmax())]
    for layer in range(prefill.info.layout.num_layers):
        kv = prefill.read_kv(table, layer, 0, len(PROMPT))
        given = LayerKv(converted(kv.keys, first, second), converted(kv.values, first, second))
        decode.write_kv(table, layer, 0, len(PROMPT), given)
    while len(tokens) < NUM_TOKENS:
        span = Span([tokens[-1]], len(PROMPT) + len(tokens) - 1, table, needs_logits=True)
        tokens.append(int(decode.forward([span]).rows()[0].argmax()))
    return tokens


def load(pair: Sequence[str]) -> dict[str, Runner]:
    """Return the runners of both nodes."""
    sender, sent, receiver, received, _ = pair
    return {
        "prefill_runner": load_runner(sender, checkpoint("llama"), dtype=sent, num_blocks=16),  # type: ignore[arg-type]
        "decode_runner": load_runner(receiver, checkpoint("llama"), dtype=received, num_blocks=16),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_kv_arrives_converted_and_no_more(pair: tuple[str, str, str, str, str]) -> None:
    """The tokens are those of the same numbers written without a network; between 16 and 32 bits nothing is lost."""
    pytest.importorskip("mlx_lm")
    runners = load(pair)
    expected = greedy_after(runners["prefill_runner"], runners["decode_runner"], pair[1], pair[3])

    async def client(nodes: Pair) -> None:
        request = request_of(PROMPT, model_id="tiny", bypass_prefix_cache=True)
        request.placement.wire_dtype = dtype_to_proto(KvDtype(pair[4]))
        answer = await generate(nodes, request)

        assert answer.summary.fallback_reason == ""
        assert answer.summary.key_wire_dtype == dtype_to_proto(KvDtype(pair[4]))
        assert answer.token_ids == expected

    with_pair(client, transport="auto", timeouts=PATIENT, timeout_seconds=120.0, **runners)


def test_caches_that_differ_are_refused_where_no_format_was_agreed_upon() -> None:
    """By the name of the field, before any work."""
    pytest.importorskip("mlx_lm")

    async def client(nodes: Pair) -> None:
        answer = await generate(nodes, request_of(PROMPT, model_id="tiny"))

        assert answer.summary.fallback_reason == "KV_LAYOUT_MISMATCH:dtype"

    with_pair(client, transport="auto", timeouts=PATIENT, timeout_seconds=120.0, **load(PAIRS[0]))
