"""Which spans share a pass of the mlx runner."""

from __future__ import annotations

import pytest

from baton.engine.runners.base import LayerKv, Span

pytest.importorskip("mlx.core")

from baton.engine.runners.mlx.forward_pass.batches import plan_passes


def decode_span(length: int, first_block: int = 0) -> Span:
    """Return the span of a sequence's newest token."""
    return Span([1], length - 1, range(first_block, first_block + length), needs_logits=True)


def sink(layer: int, kv: LayerKv) -> None:
    """Take nothing."""


def test_longer_spans_and_spans_with_a_sink_go_alone() -> None:
    """Only single tokens without a sink share a pass."""
    spans = [decode_span(5), Span([1, 2], 0, [], True), decode_span(6), Span([1], 0, [], True, layer_sink=sink)]

    passes = plan_passes(spans, [], block_tokens=1, weight_bytes=10**9, token_bytes=1000)

    assert passes == ([1, 3], [[2, 0]])


def test_sequences_of_similar_length_share_a_pass() -> None:
    """A little padding costs less than reading the weights again."""
    spans = [decode_span(length) for length in (900, 1000, 950, 800)]

    passes = plan_passes(spans, [], block_tokens=1, weight_bytes=16 * 10**9, token_bytes=131_072)

    assert passes == ([], [[1, 2, 0, 3]])


def test_one_long_sequence_does_not_pad_many_short_ones() -> None:
    """A sequence of 32k tokens among 31 of about 100 has a pass of its own, for a model of 1 GB."""
    spans = [decode_span(100 + index) for index in range(31)]
    spans.insert(7, decode_span(32_768))

    passes = plan_passes(spans, [], block_tokens=1, weight_bytes=10**9, token_bytes=65_536)

    assert passes.together[0] == [7]
    assert [len(indices) for indices in passes.together] == [1, 31]


def test_no_spans_need_no_pass() -> None:
    """An empty step runs nothing."""
    assert plan_passes([], [], block_tokens=1, weight_bytes=1, token_bytes=1) == ([], [])


def test_token_that_another_span_of_the_pass_reads_is_computed_before() -> None:
    """A prompt's single token fills a block with which a later span's table begins: it has a pass of its own first."""
    fills, reads, decodes = Span([7], 1, [4], True), Span([8, 9], 2, [4, 5], True), Span([3], 2, [6, 7], True)

    passes = plan_passes([fills, reads, decodes], [0, 1, 2], weight_bytes=1, token_bytes=1, block_tokens=2)

    assert passes == ([0, 1], [[2]])
