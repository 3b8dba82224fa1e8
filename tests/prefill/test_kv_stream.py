"""KV from a prefill engine into a decode engine, in every cut."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.events import Admitted, Ended, TokenReady
from baton.engine.request import KvExportSpec, Purpose
from baton.engine.runners.base import Span
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, payload_crc32c
from baton.prefill.kv_stream import FrameExport
from engine.rig import GREEDY, LAYOUT, Rig, expected_tokens, mock_runner, prompt_of, request_of

End = Literal["commit", "fall back", "fall back after the first token", "abort"]


def prefill(rig: Rig, prompt: tuple[int, ...], begin: int, layers: int, chunk: int) -> tuple[list[KvFrame], TokenReady]:
    """Return the frames and the first token of a prefill."""
    frames: queue.SimpleQueue[KvFrame] = queue.SimpleQueue()
    export = FrameExport(LAYOUT, KvProgress.begin(LAYOUT, begin, len(prompt)), layers, frames.put, clock=lambda: 1.0)
    spec = KvExportSpec(export, token_begin=begin, chunk_tokens=chunk)
    listening = rig.submit(request_of(prompt, purpose=Purpose.PREFILL, export=spec))
    token = listening.until(TokenReady)
    listening.until(Ended)
    assert isinstance(token, TokenReady)
    return [frames.get_nowait() for _ in range(frames.qsize())], token


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 40),
    hits=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    layers_per_frame=st.integers(1, 4),
    chunk_tokens=st.integers(0, 9),
    num_blocks=st.sampled_from([14, 64]),
    end=st.sampled_from(["commit", "commit", "fall back", "fall back after the first token", "abort"]),
    num_frames=st.integers(0, 20),
)
def test_a_hand_over_in_any_cut_gives_the_tokens_of_one_engine(
    length: int,
    hits: tuple[int, int],
    layers_per_frame: int,
    chunk_tokens: int,
    num_blocks: int,
    end: End,
    num_frames: int,
) -> None:
    """Any prefix hit on either side, chunks, layers per frame; complete, given up at any frame, or aborted."""
    prompt = prompt_of(length)
    one = replace(GREEDY, max_tokens=1)
    with Rig(mock_runner(num_blocks)) as source, Rig(mock_runner(num_blocks)) as target:
        for rig, num_hit in zip((source, target), hits, strict=True):
            if num_hit:
                rig.generate(request_of(prompt[:num_hit], "warm", one))
        request = request_of(prompt, purpose=Purpose.RECEIVE)
        listening = target.submit(request)
        admitted = listening.until(Admitted)
        assert isinstance(admitted, Admitted)
        begin = admitted.num_cached_tokens
        frames, token = prefill(source, prompt, begin, layers_per_frame, chunk_tokens)

        ledger = StreamLedger(LAYOUT, KvProgress.begin(LAYOUT, begin, length))
        for number, frame in enumerate(frames):
            ledger.enter(frame, number, payload_crc32c(frame.keys, frame.values))
        ledger.close(ledger.totals)
        for frame in frames if end == "commit" else frames[:num_frames]:
            target.engine.write_kv("r", frame)
        if end in ("commit", "fall back after the first token"):
            target.engine.take_first_token("r", token.token)
        if end == "abort":
            target.engine.abort(request)
            return
        (target.engine.commit_kv if end == "commit" else target.engine.fall_back)("r")

        assert listening.result() == expected_tokens(prompt, 8)
        assert target.generate(request_of(prompt, "again")) == expected_tokens(prompt, 8)


def test_a_prefill_that_is_computed_again_exports_nothing_twice() -> None:
    """Positions before the next one due are cut off, per layer and head."""
    owed = KvProgress.begin(LAYOUT, 2, 10)
    frames: list[KvFrame] = []
    runner = mock_runner()
    runner.forward([Span(prompt_of(10), 0, [0, 1, 2], needs_logits=False)])
    export = FrameExport(LAYOUT, owed, 2, frames.append, clock=lambda: 1.0)
    for start, num_tokens in ((0, 4), (0, 4), (0, 7), (5, 5)):
        for layer in range(LAYOUT.num_layers):
            export(start, layer, runner.read_kv([0, 1, 2], layer, start, num_tokens))

    ledger = StreamLedger(LAYOUT, owed)
    for number, frame in enumerate(frames):
        ledger.enter(frame, number, payload_crc32c(frame.keys, frame.values))
    ledger.close(ledger.totals)
    for frame in frames:
        pieces = [
            runner.read_kv([0, 1, 2], frame.layer_begin + index, frame.token_begin, frame.num_tokens)
            for index in range(frame.num_layers)
        ]
        assert frame.keys == b"".join(piece.keys for piece in pieces)
        assert frame.values == b"".join(piece.values for piece in pieces)


@settings(max_examples=60, deadline=None)
@given(
    begins=st.tuples(*(st.integers(0, 10) for _ in LAYOUT.layers)),
    layers_per_frame=st.integers(1, 4),
    chunks=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), max_size=6),
)
def test_an_export_brings_what_each_layer_owes(
    begins: tuple[int, ...], layers_per_frame: int, chunks: list[tuple[int, int]]
) -> None:
    """Whatever the layers have already, and however positions are computed, and computed again, on the way."""
    owed = KvProgress(begins, 10)
    frames: list[KvFrame] = []
    runner = mock_runner()
    runner.forward([Span(prompt_of(10), 0, [0, 1, 2], needs_logits=False)])
    export = FrameExport(LAYOUT, owed, layers_per_frame, frames.append, clock=lambda: 1.0)
    end = min(begins)
    for start, num_tokens in [*chunks, (0, 10)]:
        start, stop = min(start, end), min(10, min(start, end) + num_tokens)
        for layer in range(LAYOUT.num_layers if stop > start else 0):
            export(start, layer, runner.read_kv([0, 1, 2], layer, start, stop - start))
        end = max(end, stop)

    ledger = StreamLedger(LAYOUT, owed)
    for number, frame in enumerate(frames):
        ledger.enter(frame, number, payload_crc32c(frame.keys, frame.values))
        pieces = [
            runner.read_kv([0, 1, 2], frame.layer_begin + index, frame.token_begin, frame.num_tokens)
            for index in range(frame.num_layers)
        ]
        assert frame.keys == b"".join(piece.keys for piece in pieces)
        assert frame.values == b"".join(piece.values for piece in pieces)
    ledger.close(ledger.totals)
