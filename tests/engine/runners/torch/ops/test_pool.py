"""K and V leave the torch runner in order and complete, and enter it without a trace."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import torch

from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.torch import TorchRunner, load_torch_runner
from checkpoints import CHECKPOINT_NAMES, VOCABULARY_SIZE, CheckpointName, checkpoint, reference_generate

NUM_BLOCKS = 64
PROMPT = random.Random(0).choices(range(3, VOCABULARY_SIZE), k=100)

every_checkpoint = pytest.mark.parametrize("name", CHECKPOINT_NAMES)


@cache
def runner_of(name: CheckpointName) -> TorchRunner:
    """Load a runner once."""
    return load_torch_runner(checkpoint(name), model_id=name, num_blocks=NUM_BLOCKS)


def decode(runner: TorchRunner, token_id: int, start: int, block_table: list[int], num_tokens: int) -> list[int]:
    """Generate greedily after a token that is not computed yet; return it and what follows."""
    output = [token_id]
    while len(output) < num_tokens:
        span = Span(output[-1:], start + len(output) - 1, block_table, needs_logits=True)
        output += runner.forward([span]).argmax()
    return output


@every_checkpoint
def test_sink_gets_each_layer_in_order_as_it_lies_in_the_blocks(name: CheckpointName) -> None:
    """A chunk's sink is called once per layer, in order, with the bytes that `read_kv` returns for its positions."""
    runner, table, received = runner_of(name), [9, 4, 5, 30, 2, 1, 7], list[tuple[int, LayerKv]]()
    runner.forward([Span(PROMPT[:37], 0, table, needs_logits=False)])

    runner.forward([Span(PROMPT[37:], 37, table, needs_logits=True, layer_sink=lambda *args: received.append(args))])

    layout = runner.info.layout
    assert [layer for layer, _ in received] == list(range(layout.num_layers))
    for layer, kv in received:
        stored = runner.read_kv(table, layer, 37, 63)
        assert bytes(kv.keys) == bytes(stored.keys)
        assert bytes(kv.values) == bytes(stored.values)
        assert len(kv.keys) + len(kv.values) == layout.layers[layer].num_token_elements * 4 * 63


def test_sink_is_called_before_the_layer_is_computed() -> None:
    """Layer i leaves before layer i's MLP runs, so that its transfer hides behind the layers that follow."""
    runner = load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=NUM_BLOCKS, model_code="transformers")
    layers, events = runner._model._model.get_decoder().layers, list[str]()
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda *_, index=index: events.append(f"mlp {index}"))
        for index, layer in enumerate(layers)
    ]

    runner.forward([Span(PROMPT, 0, range(7), True, layer_sink=lambda layer, _: events.append(f"sink {layer}"))])
    for hook in hooks:
        hook.remove()

    assert events == [event for layer in range(4) for event in (f"sink {layer}", f"mlp {layer}")]


def test_sinks_of_two_spans_get_their_own_positions() -> None:
    """Sequences in one pass do not see each other's K and V, and a buffer outlives later passes."""
    runner, received = runner_of("llama"), dict[str, list[bytes | memoryview]]()
    spans = [
        Span(
            tokens,
            0,
            table,
            needs_logits=False,
            layer_sink=lambda _, kv, key=key: received.setdefault(key, []).append(kv.keys),
        )
        for key, tokens, table in (("a", PROMPT[:20], [0, 1]), ("b", PROMPT[50:], [10, 3, 8, 9]))
    ]

    runner.forward(spans)
    expected = {
        key: [bytes(runner.read_kv(span.block_table, layer, 0, span.end).keys) for layer in range(4)]
        for key, span in zip("ab", spans, strict=True)
    }
    runner.forward([Span(PROMPT[::-1], 0, range(11), needs_logits=False)])

    assert {key: [bytes(keys) for keys in layers] for key, layers in received.items()} == expected


@every_checkpoint
@pytest.mark.parametrize("target", [list(range(20, 30)), [40, 33, 60, 21, 22, 50, 48, 20, 39, 41]])
def test_decode_goes_on_from_kv_written_into_other_blocks(name: CheckpointName, target: list[int]) -> None:
    """K and V read from one sequence and written in uneven pieces elsewhere continue as if computed there."""
    runner, source = runner_of(name), list(range(10))
    (first,) = runner.forward([Span(PROMPT, 0, source, needs_logits=True)]).argmax()

    for layer in range(runner.info.layout.num_layers):
        for start, end in ((0, 1), (1, 40), (40, 48), (48, 100)):
            runner.write_kv(target, layer, start, end - start, runner.read_kv(source, layer, start, end - start))

    output = decode(runner, first, 100, target, 32)
    assert output == reference_generate(checkpoint(name), PROMPT, 32, guess=output)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bytes_survive_a_round_trip(dtype: str) -> None:
    """What is written is what is read, byte for byte, in the documented order of axes."""
    runner = load_torch_runner(checkpoint("qwen3"), model_id="m", dtype=dtype, num_blocks=8)
    spec = runner.info.layout.layers[1]
    shape = (spec.num_kv_heads, 5, spec.key_head_dim)
    keys = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    kv = LayerKv(keys.view(torch.uint8).numpy().tobytes(), (-keys).view(torch.uint8).numpy().tobytes())

    runner.write_kv([6, 2], 1, 13, 5, kv)

    assert [bytes(part) for part in runner.read_kv([6, 2], 1, 13, 5)] == list(kv)
    one = np.frombuffer(runner.read_kv([6, 2], 1, 15, 1).keys, dtype=np.uint8)
    assert one.tobytes() == keys[:, 2].contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("offset", [0, 1, 37])
def test_kv_is_written_from_wherever_it_was_received(offset: int) -> None:
    """A message's payload begins anywhere in staging memory; that memory is used for the next one afterwards."""
    runner = load_torch_runner(checkpoint("qwen3"), model_id="m", num_blocks=8)
    spec = runner.info.layout.layers[1]
    num_bytes = spec.num_kv_heads * 5 * spec.key_head_dim * 4
    staging = bytearray(random.Random(offset).randbytes(offset + 2 * num_bytes))
    keys, values = (memoryview(staging)[offset + start :][:num_bytes] for start in (0, num_bytes))
    expected = [bytes(keys), bytes(values)]

    runner.write_kv([6, 2], 1, 13, 5, LayerKv(keys, values))
    staging[:] = bytes(len(staging))

    assert [bytes(part) for part in runner.read_kv([6, 2], 1, 13, 5)] == expected


def test_write_kv_refuses_buffers_of_another_size() -> None:
    """Bytes that are not those of the positions are refused rather than reshaped."""
    kv = LayerKv(b"\0" * 12, b"\0" * 12)

    with pytest.raises(ValueError, match="12 bytes"):
        runner_of("llama").write_kv([0], 0, 0, 1, kv)
