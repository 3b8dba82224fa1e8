"""Layers are handed out in order, when their copies have arrived, and nobody waits for them before a pass must end."""

from __future__ import annotations

import random

import pytest
import torch

from baton.engine.runners.base import LayerKv, Span, StateSpan
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from baton.engine.runners.torch.loader import load_torch_runner
from baton.engine.runners.torch.ops.cuda.copy_stream import KvCopies
from baton.engine.runners.torch.ops.pool import KeysValues
from baton.kv.numpy_codec import join_blocks
from checkpoints import VOCABULARY_SIZE, checkpoint

PROMPT = random.Random(8).choices(range(3, VOCABULARY_SIZE), k=40)


class LateCopy:
    """A copy that arrives when it is told to, or when somebody waits for it."""

    def __init__(self, kv: KeysValues) -> None:
        self.kv = kv
        self.has_arrived = self.was_awaited = False

    def is_done(self) -> bool:
        """Return whether it has arrived."""
        return self.has_arrived

    def wait(self) -> LayerKv:
        """Return it."""
        self.was_awaited = not self.has_arrived
        return self.kv.to_layer_kv()


class LateStream:
    """Copies that are late."""

    def __init__(self) -> None:
        self.copies: list[LateCopy] = []

    def begin(self, kv: KeysValues) -> LateCopy:
        """Begin one, from tensors that nobody may change before it has arrived."""
        self.copies.append(LateCopy(KeysValues(kv.keys.clone(), kv.values.clone())))
        return self.copies[-1]


def layer(value: float) -> KeysValues:
    """Return K and V of one element."""
    return KeysValues(torch.full((1, 1, 1), value), torch.full((1, 1, 1), -value))


def test_what_has_arrived_is_handed_out_in_order_and_nothing_else() -> None:
    """A copy that overtakes another waits for it; polling waits for none."""
    stream, received = LateStream(), list[int]()
    hand_over = KvCopies(stream)
    for index in range(3):
        hand_over.add(lambda layer, kv: received.append(layer), index, layer(index))
    stream.copies[1].has_arrived = True
    hand_over.poll()
    assert received == []
    stream.copies[0].has_arrived = True

    hand_over.poll()

    assert received == [0, 1]
    assert not any(copy.was_awaited for copy in stream.copies)


def test_a_layer_polls_for_those_before_it() -> None:
    """While the pass runs, copies leave as they arrive, without anybody asking."""
    stream, received = LateStream(), list[int]()
    hand_over = KvCopies(stream)
    hand_over.add(lambda layer, kv: received.append(layer), 0, layer(0))
    stream.copies[0].has_arrived = True

    hand_over.add(lambda layer, kv: received.append(layer), 1, layer(1))

    assert received == [0]


def test_draining_hands_out_the_rest() -> None:
    """It waits for what has not arrived; after a failed pass nothing is left to hand out."""
    stream, received = LateStream(), list[float]()
    hand_over = KvCopies(stream)
    hand_over.add(lambda layer, kv: received.append(layer), 0, layer(0))
    hand_over.drain()
    hand_over.add(lambda layer, kv: received.append(layer), 1, layer(1))
    hand_over.clear()
    hand_over.drain()

    assert received == [0]
    assert stream.copies[0].was_awaited


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_pass_is_done_when_all_its_layers_are_out(is_launched: bool) -> None:
    """With copies that never arrive by themselves, sinks still get every layer's bytes before the tokens."""
    runner = load_torch_runner(
        checkpoint("llama"), model_id="m", num_blocks=16, model_code="baton", uses_decode_buffers=True
    )
    assert isinstance(runner, CudaGraphRunner)
    runner._kv_copies = KvCopies(LateStream())
    received: list[tuple[int, LayerKv]] = []
    span = Span(PROMPT, 0, range(3), needs_logits=True, layer_sink=lambda *handed: received.append(handed))
    if is_launched:
        launched = runner.launch([span])
        assert received == []
        launched.tokens()
    else:
        runner.forward([span])

    assert [index for index, _ in received] == list(range(runner.info.layout.num_layers))
    for index, kv in received:
        stored = runner.read_kv(range(3), index, 0, len(PROMPT))
        assert bytes(kv.keys) == bytes(stored.keys)
        assert bytes(kv.values) == bytes(stored.values)


@pytest.mark.parametrize("block_ids", [(0, 1, 2), (2, 0)], ids=["run", "scattered"])
@pytest.mark.parametrize("model", ["llama", "qwen3_5"])
def test_blocks_are_copied_as_they_are_behind_the_passes_launched_before(
    model: str, block_ids: tuple[int, ...]
) -> None:
    """What is written afterwards is not seen; nobody waits for the copies but who wants them."""
    runner = load_torch_runner(checkpoint(model), model_id="m", num_blocks=16)
    stream = LateStream()
    runner._kv_copies = KvCopies(stream)
    state = StateSpan(None, 0) if runner.num_state_slots else None
    runner.forward([Span(PROMPT, 0, range(3), needs_logits=True, state=state)])
    layers = range(runner.info.layout.num_layers)
    num_tokens = len(block_ids) * runner.block_tokens
    expected = [[*map(bytes, runner.read_kv(block_ids, index, 0, num_tokens))] for index in layers]
    stream.copies.clear()

    copies = runner.begin_copies(block_ids)
    runner.forward([Span(PROMPT[::-1], 0, range(3), needs_logits=True, state=state)])
    assert not any(copy.was_awaited for copy in stream.copies)
    copies.wait()
    assert stream.copies
    assert all(copy.was_awaited for copy in stream.copies)
    blocks = copies.blocks()

    assert [
        [join_blocks(half, runner.info.layout.layers[index].num_kv_heads) for half in zip(*layer, strict=True)]
        for index, layer in enumerate(zip(*blocks, strict=True))
    ] == expected
