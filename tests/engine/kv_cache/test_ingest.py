"""KV that arrives while others generate: in pieces, in turns, and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.events import Admitted, Failed, FrameLanded
from baton.engine.kv_cache.ingest import FrameCursor
from baton.engine.request import EngineRequest, Purpose
from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.mock.passes import MockLogits
from baton.engine.runners.mock.state import kv_of, states_of
from baton.engine.sampling import SampledToken
from baton.errors import BatonError
from baton.kv.stream import KvFrame
from engine.rig import (
    GREEDY,
    INFO,
    LAYOUT,
    TIMEOUT_SECONDS,
    Listening,
    Rig,
    WaitingMockRunner,
    expected_tokens,
    mock_runner,
    prompt_of,
    request_of,
)

PROMPT = prompt_of(40)
LONG = replace(GREEDY, max_tokens=100)
GENERATING = prompt_of(8, 5)
BLOCK_TOKENS = 4


class RecordingRunner(WaitingMockRunner):
    """Notes which positions it writes in which gap between passes; tells when it is to decode, and does when it may."""

    gaps: list[list[tuple[int, int, int]]]
    is_decoding: threading.Event
    may_decode: threading.Event
    fails_at = -1

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Compute, and begin a gap."""
        self.gaps.append([])
        if all(len(span.token_ids) == 1 for span in spans):
            self.is_decoding.set()
            assert self.may_decode.wait(TIMEOUT_SECONDS)
        return super().forward(spans)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Note the write; fail if told to."""
        self.gaps[-1].append((layer, start, num_tokens))
        if sum(map(len, self.gaps)) == self.fails_at:
            raise BatonError("no such block")
        super().write_kv(block_table, layer, start, num_tokens, kv)


def _runner() -> RecordingRunner:
    runner = mock_runner(kind=RecordingRunner)
    assert isinstance(runner, RecordingRunner)
    runner.gaps = [[]]
    runner.is_decoding, runner.may_decode = threading.Event(), threading.Event()
    return runner


def _frames(prompt: Sequence[int]) -> list[KvFrame]:
    """Return the prompt's KV: layers 0 and 1 in a frame, and layer 2."""
    states = states_of(prompt, 0, LAYOUT.num_layers)
    layers = [kv_of(states[layer], spec, LAYOUT.dtype) for layer, spec in enumerate(LAYOUT.layers)]
    joined = [(0, layers[:2]), (2, layers[2:])]
    return [
        KvFrame(
            first,
            len(parts),
            0,
            len(prompt),
            b"".join(bytes(part.keys) for part in parts),
            b"".join(bytes(part.values) for part in parts),
        )
        for first, parts in joined
    ]


def _receive(rig: Rig, name: str, prompt: Sequence[int]) -> tuple[EngineRequest, Listening]:
    request = request_of(prompt, name, purpose=Purpose.RECEIVE)
    listening = rig.submit(request)
    listening.until(Admitted)
    return request, listening


def _beside_decoding(rig: Rig, runner: RecordingRunner, hand_over: Callable[[], None]) -> Listening:
    """Hand something to the engine in the middle of another request's first decode pass; return that request."""
    generating = rig.submit(request_of(GENERATING, "generating", LONG))
    assert runner.is_decoding.wait(TIMEOUT_SECONDS)  # else the gap before that pass might take a part of it
    hand_over()
    runner.may_decode.set()
    return generating


def _hand_over(rig: Rig, name: str, prompt: Sequence[int]) -> None:
    rig.engine.take_first_token(name, SampledToken(expected_tokens(prompt, 1)[0]))
    for frame in _frames(prompt):
        rig.engine.write_kv(name, frame)
    rig.engine.commit_kv(name)


def test_every_gap_writes_one_small_piece_while_others_generate() -> None:
    """Where passes take no time no share of it allows more; the request still gets on, and says what it would."""
    runner = _runner()
    with Rig(runner) as rig:
        _, listening = _receive(rig, "r", PROMPT)
        generating = _beside_decoding(rig, runner, lambda: _hand_over(rig, "r", PROMPT))
        assert listening.result() == expected_tokens(PROMPT, 8)
        assert generating.result() == expected_tokens(GENERATING, 100)
    pieces = [(layer, start, BLOCK_TOKENS) for layer in range(3) for start in range(0, 40, BLOCK_TOKENS)]
    assert [piece for gap in runner.gaps for piece in gap] == pieces
    assert max(map(len, runner.gaps)) == 1
    assert sum(isinstance(event, FrameLanded) for event in listening.seen) == 2


def test_everything_is_written_at_once_where_nobody_generates() -> None:
    """Whole layers: there is nobody to hold up."""
    runner = _runner()
    runner.may_decode.set()
    with Rig(runner) as rig:
        _, listening = _receive(rig, "r", PROMPT)
        _hand_over(rig, "r", PROMPT)
        assert listening.result() == expected_tokens(PROMPT, 8)
    assert [piece for gap in runner.gaps for piece in gap] == [(layer, 0, 40) for layer in range(3)]


def test_receiving_requests_take_turns() -> None:
    """A short prompt is not written behind the whole of a long one."""
    runner = _runner()
    short = prompt_of(8, 3)
    with Rig(runner) as rig:
        received = [_receive(rig, name, prompt)[1] for name, prompt in (("long", PROMPT), ("short", short))]

        def hand_over() -> None:
            _hand_over(rig, "long", PROMPT)
            _hand_over(rig, "short", short)

        generating = _beside_decoding(rig, runner, hand_over)
        assert [each.result() for each in received] == [expected_tokens(PROMPT, 8), expected_tokens(short, 8)]
        generating.result()
    written = [piece for gap in runner.gaps for piece in gap]
    assert len(written) == 30 + 6
    assert written[:12:2] == [(0, 4 * index, BLOCK_TOKENS) for index in range(6)]
    assert written[1:12:2] == [(layer, start, BLOCK_TOKENS) for layer in range(3) for start in (0, 4)]


def test_nothing_is_written_for_a_request_that_is_aborted() -> None:
    """Its blocks are free, and none of its KV lands in them."""
    runner = _runner()
    with Rig(runner) as rig:
        request, _ = _receive(rig, "r", PROMPT)

        def hand_over() -> None:
            _hand_over(rig, "r", PROMPT)
            rig.engine.abort(request)

        generating = _beside_decoding(rig, runner, hand_over)
        assert generating.result() == expected_tokens(GENERATING, 100)
    assert not any(runner.gaps)


def test_nothing_is_written_for_a_request_that_its_first_token_ends() -> None:
    """Nobody needs the prompt's KV any more."""
    runner = _runner()
    with Rig(runner) as rig:
        one = replace(GREEDY, max_tokens=1)
        listening = rig.submit(request_of(PROMPT, params=one, purpose=Purpose.RECEIVE))
        listening.until(Admitted)

        def hand_over() -> None:
            for frame in _frames(PROMPT):
                rig.engine.write_kv("r", frame)
            rig.engine.take_first_token("r", SampledToken(expected_tokens(PROMPT, 1)[0]))

        generating = _beside_decoding(rig, runner, hand_over)
        assert listening.result() == expected_tokens(PROMPT, 1)
        generating.result()
    assert not any(runner.gaps)


def test_a_write_that_fails_ends_the_request_alone() -> None:
    """Those who generate go on, and nothing more of it is written."""
    runner = _runner()
    runner.fails_at = 5
    with Rig(runner) as rig:
        _, listening = _receive(rig, "r", PROMPT)
        generating = _beside_decoding(rig, runner, lambda: _hand_over(rig, "r", PROMPT))
        assert isinstance(listening.until(Failed), Failed)
        assert generating.result() == expected_tokens(GENERATING, 100)
    assert sum(map(len, runner.gaps)) == 5


def test_falling_back_waits_for_what_has_arrived() -> None:
    """What counts as received is in the blocks before the rest is computed."""
    runner = _runner()
    with Rig(runner) as rig:
        _, listening = _receive(rig, "r", PROMPT)

        def hand_over() -> None:
            for frame in _frames(PROMPT[:30]):
                rig.engine.write_kv("r", frame)
            rig.engine.fall_back("r", 30)

        generating = _beside_decoding(rig, runner, hand_over)
        assert listening.result() == expected_tokens(PROMPT, 8)
        generating.result()
    assert sum(num_tokens for gap in runner.gaps for _, _, num_tokens in gap) == 3 * 30


@settings(max_examples=60, deadline=None)
@given(
    token_begin=st.integers(0, 20),
    num_tokens=st.integers(1, 60),
    block_tokens=st.integers(1, 16),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
)
def test_pieces_of_a_frame_are_the_frame(
    token_begin: int, num_tokens: int, block_tokens: int, sizes: list[int]
) -> None:
    """Whatever fits each time: written side by side they are every byte, once, and none is larger than it should be."""
    spec, dtype = INFO.layout.layers[0], INFO.layout.dtype
    states = states_of(prompt_of(num_tokens), 0, 2)
    layers = [kv_of(states[layer], spec, dtype) for layer in range(2)]
    frame = KvFrame(
        4,
        2,
        token_begin,
        num_tokens,
        b"".join(bytes(layer.keys) for layer in layers),
        b"".join(bytes(layer.values) for layer in layers),
    )
    cursor, taken = FrameCursor(frame, spec.num_kv_heads, block_tokens), 0
    expected = {(4 + layer, token_begin + index) for layer in range(2) for index in range(num_tokens)}
    num_left = len(frame.keys) + len(frame.values)
    while not cursor.is_complete:
        assert cursor.num_bytes_left == num_left
        size = sizes[taken % len(sizes)]
        taken += 1
        piece = cursor.next_piece(size, must=True)
        assert piece is not None
        assert piece.num_bytes <= size or piece.num_tokens <= block_tokens
        first = piece.start - token_begin
        part = kv_of(states[piece.layer - 4][first : first + piece.num_tokens], spec, dtype)
        assert (bytes(piece.kv.keys), bytes(piece.kv.values)) == (bytes(part.keys), bytes(part.values))
        num_left -= piece.num_bytes
        positions = {(piece.layer, piece.start + index) for index in range(piece.num_tokens)}
        assert positions <= expected
        expected -= positions
    assert not expected


def test_what_comes_late_for_a_request_that_is_gone_is_nothing() -> None:
    """The stream's end and its client's need not know of each other."""
    with Rig(mock_runner()) as rig:
        rig.engine.commit_kv("gone")
        rig.engine.fall_back("gone", 5)
        prompt = prompt_of(9)

        assert rig.generate(request_of(prompt, "next")) == expected_tokens(prompt, GREEDY.max_tokens)
