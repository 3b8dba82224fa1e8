"""Two processes that hold half of every layer compute what one does; KV goes in and out whole; a death is seen."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Launched, LayerKv, Runner, Span
from baton.engine.runners.drawing import Draws
from baton.engine.runners.torch.loader import LoadOptions, load_torch_runner
from baton.engine.runners.torch.tensor_parallel.order import join_heads, split_heads
from baton.engine.runners.torch.tensor_parallel.ranks import take_share
from baton.engine.runners.torch.tensor_parallel.runner import ParallelRunner, load_parallel_runner
from baton.errors import BatonError, ConfigurationError
from checkpoints import VOCABULARY_SIZE, CheckpointName, checkpoint, reference_generate

NAME: CheckpointName = "qwen2"  # grouped queries, and biases
NUM_BLOCKS = 32
DRAW = random.Random(11)
PROMPTS = [DRAW.choices(range(3, VOCABULARY_SIZE), k=size) for size in (45, 20)]
TABLES = [[9, 4, 5, 30, 2], [21, 8, 3]]


@cache
def whole() -> Runner:
    """Load the same model in one piece."""
    return load_torch_runner(checkpoint(NAME), model_id=NAME, num_blocks=NUM_BLOCKS)


@pytest.fixture(scope="module")
def deaths() -> queue.SimpleQueue[tuple[int, int]]:
    """Return where ranks that end are told."""
    return queue.SimpleQueue()


@pytest.fixture(scope="module")
def runner(deaths: queue.SimpleQueue[tuple[int, int]]) -> Iterator[ParallelRunner]:
    """Run two ranks whose decode passes go over static buffers."""
    options = LoadOptions(
        checkpoint(NAME), NAME, NUM_BLOCKS, num_threads=1, uses_decode_buffers=True, bounds=PoolBounds(max_batch_size=4)
    )
    runner = load_parallel_runner(options, 2, on_death=lambda *death: deaths.put(death))
    yield runner
    runner.close()
    runner.close()


def prompts(runner: Runner, *, after_prefix: int = 0) -> Launched:
    """Launch a packed pass of both prompts, or of what follows their first positions."""
    return runner.launch(
        [
            Span(prompt[after_prefix:], after_prefix, table, needs_logits=True)
            for prompt, table in zip(PROMPTS, TABLES, strict=True)
        ]
    )


def test_ranks_have_agreed_on_the_blocks(runner: ParallelRunner) -> None:
    """The runner tells for all of them why there are so many."""
    assert (runner.num_blocks, runner.num_blocks_cause) == (NUM_BLOCKS, "num_blocks says so")


def test_output_equals_transformers(runner: ParallelRunner) -> None:
    """Chunked prompts, then decode steps of which the host names no token, over rows that change places."""
    runner.forward([Span(PROMPTS[0][:7], 0, TABLES[0], False), Span(PROMPTS[1][:7], 0, TABLES[1], False)])
    launched = prompts(runner, after_prefix=7)
    outputs: list[list[int]] = [[token] for token in launched.tokens()]
    for order in ((0, 1), (1, 0), (1, 0)):
        spans = [
            Span((-1,), len(PROMPTS[index]) + len(outputs[index]) - 1, TABLES[index], True, follows_row=row)
            for row, index in enumerate(order)
        ]
        if order == (1, 0) and len(outputs[0]) == 4:
            spans = [span._replace(follows_row=1 - row) for row, span in enumerate(spans)]
        launched = runner.launch(spans, after=launched, num_steps=3)
        for step in range(3):
            for index, token in zip(order, launched.tokens(step), strict=True):
                outputs[index].append(token)

    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output == reference_generate(checkpoint(NAME), prompt, 10, guess=output)


def test_logits_and_draws_are_those_of_the_whole_model(runner: ParallelRunner) -> None:
    """The vocabulary is joined in order, and all ranks draw the same tokens."""
    draws = Draws(np.array([0.9, 1.5]), np.random.default_rng(1).random((1, 2)))
    spans = [Span(prompt, 0, table, needs_logits=True) for prompt, table in zip(PROMPTS, TABLES, strict=True)]
    np.testing.assert_allclose(runner.forward(spans).rows(), whole().forward(spans).rows(), atol=1e-4)

    assert runner.launch(spans, draws=draws).tokens() == whole().launch(spans, draws=draws).tokens()


def test_kv_leaves_and_enters_whole(runner: ParallelRunner) -> None:
    """Layers handed over and blocks read have all heads in order; what is written is decoded from."""
    received: list[tuple[int, LayerKv]] = []
    for sink in (lambda *handed: received.append(handed), None):
        runner.launch([Span(PROMPTS[0], 0, TABLES[0], needs_logits=True, layer_sink=sink)]).tokens()
    whole().forward([Span(PROMPTS[0], 0, TABLES[0], needs_logits=False)])
    for layer, handed in received:
        expected = whole().read_kv(TABLES[0], layer, 0, 45)
        for own, buffer, stored in zip(handed, expected, runner.read_kv(TABLES[0], layer, 0, 45), strict=True):
            assert bytes(own) == bytes(stored)
            np.testing.assert_allclose(*(np.frombuffer(each, np.float32) for each in (own, buffer)), atol=1e-3)
        runner.write_kv([1, 0, 6], layer, 0, 45, expected)
    runner.copy_block(6, 7)
    token = reference_generate(checkpoint(NAME), PROMPTS[0], 2)

    assert len(received) == runner.info.layout.num_layers
    assert runner.launch([Span(token[:1], 45, [1, 0, 7], needs_logits=True)]).tokens() == token[1:]


def test_kv_of_a_wrong_size_is_refused_and_nobody_is_harmed(runner: ParallelRunner) -> None:
    """The first rank checks before the others are told."""
    with pytest.raises(ValueError, match="bytes"):
        runner.write_kv([1], 0, 0, 4, LayerKv(bytes(64), bytes(64)))

    assert prompts(runner).tokens() == [reference_generate(checkpoint(NAME), prompt, 1)[0] for prompt in PROMPTS]


def test_a_rank_that_dies_is_seen(runner: ParallelRunner, deaths: queue.SimpleQueue[tuple[int, int]]) -> None:
    """It is told with its exit status, and a pass fails instead of waiting. The last test: the runner is of no use."""
    runner.peers[0].process.kill()

    assert deaths.get(timeout=60) == (1, -9)
    with pytest.raises((BatonError, RuntimeError)):
        prompts(runner)


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({}, 4, "num_attention_heads 6 is no multiple"),
        ({"device": "cuda"}, 2, "'cuda:0' is not present"),
        ({"dtype": "int7"}, 2, "dtype 'int7'"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(options: dict[str, str], size: int, message: str) -> None:
    """By its name, before any process is started."""
    with pytest.raises(ConfigurationError, match=message):
        load_parallel_runner(LoadOptions(checkpoint(NAME), NAME, NUM_BLOCKS, **options), size)


def test_adapters_are_refused() -> None:
    """By name: their products are not shared out."""
    options = LoadOptions(checkpoint(NAME), NAME, NUM_BLOCKS, adapters={"mine": checkpoint(NAME)})

    with pytest.raises(ConfigurationError, match="lora mine: not together with tensor_parallel 2"):
        load_parallel_runner(options, 2)


def test_a_vocabulary_that_is_no_multiple_is_filled_up() -> None:
    """Every rank has as many rows of the output projection; those that nobody asks for come last."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    whole_weight = AutoModelForCausalLM.from_config(config := LlamaConfig(vocab_size=9, **sizes)).lm_head.weight
    shares = []
    for rank in range(2):
        model = AutoModelForCausalLM.from_config(config)
        model.lm_head.weight = whole_weight
        take_share(model, rank, 2)
        shares.append(model.lm_head.weight)

    assert [len(share) for share in shares] == [5, 5]
    assert torch.equal(torch.cat(shares)[:9], whole_weight)


def test_heads_are_split_and_joined_in_order() -> None:
    """A share is the bytes of consecutive heads."""
    kv = LayerKv(bytes(range(8)), bytes(range(100, 104)))

    shares = split_heads(kv, 2)

    assert [bytes(share.keys) for share in shares] == [bytes(range(4)), bytes(range(4, 8))]
    assert join_heads(shares) == kv
