"""A mock takes the time of the device that it stands for, for passes and for KV, and its KV proves every byte."""

from __future__ import annotations

import numpy as np
import pytest

from baton.capacity.cost import prefill_seconds
from baton.capacity.hardware import PRESETS
from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.mock import MockRunner
from baton.engine.runners.mock.state import kv_of, states_from, states_of
from engine.rig import INFO, LAYOUT, prompt_of

HARDWARE = PRESETS["m3-ultra"].slowed(1e6)
"""On which the test's model takes a while."""
BYTES_PER_SECOND = HARDWARE.memory_bytes_per_second * HARDWARE.decode_efficiency
TABLE = [3, 1, 2, 0]


class _Time:
    """Passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 10.0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def _runner(time: _Time) -> MockRunner:
    return MockRunner(INFO, HARDWARE, num_blocks=8, block_tokens=4, clock=lambda: time.now, sleep=time.sleep)


def _kv(layer: int, num_tokens: int = 16) -> LayerKv:
    states = states_of(prompt_of(num_tokens), 0, LAYOUT.num_layers)
    return kv_of(states[layer], LAYOUT.layers[layer], LAYOUT.dtype)


def _num_bytes(kv: LayerKv) -> int:
    return len(kv.keys) + len(kv.values)


def test_kv_is_written_and_read_at_the_rate_of_the_devices_memory() -> None:
    """What is read is what was written, and behind it."""
    time = _Time()
    runner, kv = _runner(time), _kv(0)
    runner.write_kv(TABLE, 0, 0, 16, kv)
    read = runner.read_kv(TABLE, 0, 0, 16)

    assert (bytes(read.keys), bytes(read.values)) == (bytes(kv.keys), bytes(kv.values))
    assert time.now - 10.0 == pytest.approx(2 * _num_bytes(kv) / BYTES_PER_SECOND)


def test_kv_that_lands_in_a_block_is_kept_together_for_all_layers() -> None:
    """Memory written for the first time comes page by page, of 2 MiB where the system has those: milliseconds each.

    Were every layer far from the next, the first prompts of a node would be written at a tenth of its rate.
    """
    runner = _runner(_Time())
    for layer in range(LAYOUT.num_layers):
        runner.write_kv(TABLE, layer, 0, 4, _kv(layer, 4))
    written = np.flatnonzero(runner._states)

    assert len(written) == LAYOUT.num_layers * runner.block_tokens
    assert written[-1] - written[0] < LAYOUT.num_layers * runner.block_tokens


def test_writes_and_copies_wait_in_the_queue_of_a_device_that_computes() -> None:
    """The host goes on at once; the pass behind them begins when they are done."""
    time = _Time()
    runner, kv = _runner(time), _kv(0)
    span = Span([1], 0, [5], needs_logits=True)
    first = runner.launch([span])
    runner.write_kv(TABLE, 0, 0, 16, kv)
    runner.copy_block(TABLE[0], 6)
    second = runner.launch([span])
    assert time.now == 10.0
    first.tokens()
    ended = time.now
    second.tokens()

    moved = _num_bytes(kv) + 2 * runner.block_tokens * LAYOUT.num_token_bytes()
    assert ended - 10.0 == pytest.approx(runner.pass_seconds([span]))
    assert time.now - ended == pytest.approx(runner.pass_seconds([span]) + moved / BYTES_PER_SECOND)


def test_a_slowed_device_declares_what_it_takes() -> None:
    """Passes, moves of KV and the profile are off by one factor, so that predictions hold."""
    time = _Time()
    whole, slowed = (
        MockRunner(INFO, each, num_blocks=8, block_tokens=4, clock=lambda: time.now, sleep=time.sleep)
        for each in (HARDWARE, HARDWARE.slowed(4.0))
    )
    spans = [Span(prompt_of(16), 0, TABLE, needs_logits=True)]

    assert slowed.pass_seconds(spans) == pytest.approx(4 * whole.pass_seconds(spans))
    assert slowed.move_seconds(1000) == pytest.approx(4 * whole.move_seconds(1000))
    profiles = [each.hardware.profile() for each in (whole, slowed)]
    expected = [prefill_seconds(INFO.shape, profile, 0, 16) for profile in profiles]
    assert expected[1] == pytest.approx(4 * expected[0])


@pytest.mark.parametrize("half", [0, 1])
def test_a_wrong_bit_gives_its_position_another_state_and_no_other(half: int) -> None:
    """In keys as in values; so a text that came of it is another one."""
    spec, states = LAYOUT.layers[0], states_of(prompt_of(16), 0, LAYOUT.num_layers)[0]
    parts = [bytearray(bytes(part)) for part in _kv(0)]
    row_bytes = len(parts[half]) // spec.num_kv_heads // 16
    parts[half][(16 + 5) * row_bytes + 1] ^= 4
    found = states_from(LayerKv(bytes(parts[0]), bytes(parts[1])), 16, spec)

    assert [index for index in range(16) if found[index] != states[index]] == [5]
