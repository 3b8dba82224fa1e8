"""The decode step over static buffers, run eagerly where there is no CUDA device, is exact and follows by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Span
from baton.engine.runners.drawing import NOT_FINITE, Draws, draw_tokens
from baton.engine.runners.torch.cuda_graph.buffers import RowTables
from baton.engine.runners.torch.cuda_graph.capture import CapturedSteps, DecodeBatch, padded_batch
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner, DevicePass
from baton.engine.runners.torch.loader import load_torch_runner
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.cuda.paged_queries import PagedQueries
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from checkpoints import CHECKPOINT_NAMES, VOCABULARY_SIZE, CheckpointName, checkpoint, reference_generate

CPU = torch.device("cpu")
DRAW = random.Random(5)
PROMPTS = [DRAW.choices(range(3, VOCABULARY_SIZE), k=size) for size in (70, 9, 33)]
TABLES = [[9, 4, 5, 30, 2, 1, 7, 20], [21, 8, 3], [40, 41, 42, 43, 44]]


@cache
def static_runner(name: CheckpointName) -> CudaGraphRunner:
    """Load a runner once whose decode passes run over static buffers."""
    runner = load_torch_runner(
        checkpoint(name),
        model_id=name,
        num_blocks=64,
        model_code="baton",
        bounds=PoolBounds(max_batch_size=4),
        uses_decode_buffers=True,
    )
    assert isinstance(runner, CudaGraphRunner)
    return runner


def prefill(runner: CudaGraphRunner, indices: list[int]) -> DevicePass:
    """Launch a packed pass of prompts."""
    return runner.launch([Span(PROMPTS[index], 0, TABLES[index], needs_logits=True) for index in indices])


def follow(index: int, num_tokens: int, row: int) -> Span:
    """Return the span after `num_tokens` output tokens, whose last one only the device knows."""
    start = len(PROMPTS[index]) + num_tokens - 1
    return Span((-1,), start, TABLES[index], needs_logits=True, follows_row=row)


@pytest.mark.parametrize("name", CHECKPOINT_NAMES)
def test_output_equals_transformers_though_no_token_is_sent(name: CheckpointName) -> None:
    """Sequences join, leave and change places; the host names no token after the prompts, and steps come in fours."""
    runner = static_runner(name)
    outputs: list[list[int]] = [[], [], []]
    first = prefill(runner, [0, 1])
    second = runner.launch([follow(0, 1, 0), follow(1, 1, 1)], after=first, num_steps=4)
    third = runner.launch(
        [follow(1, 5, 1), Span(PROMPTS[2], 0, TABLES[2], needs_logits=True), follow(0, 5, 0)], after=second
    )
    fourth = runner.launch([follow(2, 1, 1), follow(0, 6, 2), follow(1, 6, 0)], after=third, num_steps=3)
    fifth = runner.launch([follow(0, 9, 1), follow(2, 4, 0)], after=fourth, num_steps=8)
    for launched, order, num_steps in (
        (first, (0, 1), 1),
        (second, (0, 1), 4),
        (third, (1, 2, 0), 1),
        (fourth, (2, 0, 1), 3),
        (fifth, (0, 2), 8),
    ):
        for step in range(num_steps):
            for index, token_id in zip(order, launched.tokens(step), strict=True):
                outputs[index].append(token_id)

    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output == reference_generate(checkpoint(name), prompt, len(output), guess=output)
    assert [len(output) for output in outputs] == [17, 9, 12]


def test_known_tokens_are_fed_as_named() -> None:
    """A pass that follows none, as after a token came from another node, feeds what its spans say."""
    runner = static_runner("llama")
    prefill(runner, [1])
    expected = reference_generate(checkpoint("llama"), PROMPTS[1], 6)
    output = expected[:1]
    while len(output) < 6:
        span = Span(output[-1:], len(PROMPTS[1]) + len(output) - 1, TABLES[1], needs_logits=True)
        output += runner.launch([span]).tokens()

    assert output == expected


def test_logits_of_a_decode_pass_are_those_of_a_packed_one() -> None:
    """The same position computed both ways differs by rounding; rows come in the order of the spans."""
    runner = static_runner("mistral")
    prefill(runner, [0, 1, 2])
    spans = [Span([7], len(PROMPTS[index]), TABLES[index], needs_logits=True) for index in (2, 0, 1)]
    packed = runner.forward(spans).rows()

    launched = runner.launch(spans)

    np.testing.assert_allclose(launched.logits().rows(), packed, atol=1e-4)
    np.testing.assert_array_equal(launched.logits().argmax(), launched.tokens())


def test_a_chunk_that_wants_no_logits_has_none() -> None:
    """As a prompt's chunks do whose layers are handed over: their tokens are chosen on the host, from no rows."""
    runner = static_runner("llama")

    launched = runner.launch([Span(PROMPTS[0], 0, TABLES[0], needs_logits=False)])

    assert launched.logits().rows().shape == (0, VOCABULARY_SIZE)
    assert launched.tokens() == launched.logits().argmax() == []


def test_drawn_tokens_are_those_that_the_host_draws() -> None:
    """By temperature, over several steps, every token is the one that `draw_tokens` takes from the same logits."""
    runner = static_runner("llama")
    prefill(runner, [0, 1])
    draws = Draws(np.array([0.9, 0.0]), np.random.default_rng(1).random((3, 2)))
    spans = [Span([7], len(PROMPTS[index]), TABLES[index], needs_logits=True) for index in (0, 1)]
    launched = runner.launch(spans, draws=draws, num_steps=3)
    for step in range(3):
        rows = runner.forward(spans).rows()
        assert launched.tokens(step) == draw_tokens(rows, draws, step)
        spans = [
            span._replace(token_ids=[token], start=span.start + 1)
            for span, token in zip(spans, launched.tokens(step), strict=True)
        ]


def test_device_draws_as_the_host_does() -> None:
    """Over many random rows of any temperature, also greedy ones and rows that are not finite."""
    generator = np.random.default_rng(3)
    rows = generator.normal(scale=4, size=(300, 64)).astype(np.float32)
    rows[5, 7], rows[6, 7], rows[8] = np.nan, np.inf, -np.inf
    rows[9, 3:] = -np.inf
    draws = Draws(generator.choice([0.0, 0.01, 0.7, 1.0, 5.0], 300), generator.random((1, 300)))

    tokens = DeviceOps(CPU).drawn(
        torch.from_numpy(rows), *(torch.from_numpy(values) for values in (draws.temperatures, draws.uniforms[0]))
    )

    assert tokens.tolist() == draw_tokens(rows, draws)
    assert [index for index, token in enumerate(tokens.tolist()) if token == NOT_FINITE] == [5, 6, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_most_probable_token_is_the_first_of_equals(dtype: torch.dtype) -> None:
    """In every number format the smallest id wins."""
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=dtype)

    assert DeviceOps(CPU).most_probable(logits).tolist() == [1, 0]
    assert choose_ops(CPU, dtype).most_probable(logits).tolist() == [1, 0]


def placed(tables: RowTables, sequences: list[list[int]], num_rows: int) -> tuple[list[int], list[int], list[int]]:
    """Return rows, and indices and blocks of the entries that change."""
    rows = tables.place(sequences, num_rows)
    changes = tables.changes(rows, sequences, num_rows)
    tables.sent()
    return rows, *changes


def test_tables_are_sent_by_what_has_changed() -> None:
    """A block more is one entry; a sequence that stays keeps its row; one that leaves gives it to the idle block."""
    tables = RowTables(max_rows=4, max_blocks=10, idle_block=99, idle_entries=1)
    first, second = [5, 6], [7]
    joined = placed(tables, [first, second], 2)
    first.append(8)
    grown = placed(tables, [second, first], 2)
    left = placed(tables, [second], 2)
    again = placed(tables, [second], 1)

    assert joined == ([0, 1], [0, 1, 10], [5, 6, 7])
    assert grown == ([1, 0], [2], [8])
    assert left == ([1], [0], [99])
    assert again == ([0], [0], [7])


def test_a_list_that_was_filled_again_is_sent_again() -> None:
    """A preempted sequence comes back with other blocks in the same list."""
    tables = RowTables(max_rows=4, max_blocks=10, idle_block=99, idle_entries=1)
    blocks = [5, 6]
    placed(tables, [blocks], 1)
    blocks[:] = [6, 5]

    assert placed(tables, [blocks], 1) == ([0], [0, 1], [6, 5])


def test_what_was_not_sent_is_said_again() -> None:
    """A transfer that fails leaves the device with what it had."""
    tables = RowTables(max_rows=4, max_blocks=10, idle_block=99, idle_entries=1)
    placed(tables, [[5, 6]], 1)
    lost = [7, 8]
    rows = tables.place([lost, [9]], 2)
    tables.changes(rows, [lost, [9]], 2)

    assert placed(tables, [[7, 8, 3], [9]], 2) == ([0, 1], [0, 1, 2, 10], [7, 8, 3, 9])


def test_blocks_that_a_failed_pass_could_not_name_are_named_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request gets the freed blocks, in the same row; the device must not use those of the pass before."""
    runner = static_runner("llama")
    expected = reference_generate(checkpoint("llama"), PROMPTS[1], 4)
    other = [50, 51, 52]
    prefill(runner, [0])
    runner.launch([Span([7], len(PROMPTS[0]), TABLES[0], needs_logits=True)]).tokens()

    def fail(*_arguments: object) -> None:
        raise MemoryError("no pinned memory")

    with monkeypatch.context() as patch:
        patch.setattr(runner._buffers, "load", fail)
        with pytest.raises(MemoryError):
            runner.launch([Span([7], len(PROMPTS[1]), list(other), needs_logits=True)])
    output = runner.launch([Span(PROMPTS[1], 0, other, needs_logits=True)]).tokens()
    while len(output) < 4:
        span = Span(output[-1:], len(PROMPTS[1]) + len(output) - 1, list(other), needs_logits=True)
        output += runner.launch([span]).tokens()

    assert output == expected


def test_what_a_captured_step_reads_outlives_its_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows addresses alone: all that a step's attention is told lies in the runner's buffers or its pool."""
    runner = static_runner("llama")
    told: list[torch.Tensor] = []

    def replay(steps: CapturedSteps, step: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        return SimpleNamespace(replay=step), step()

    def paged(batch: DecodeBatch, *arguments: Any) -> PagedQueries:
        queries = described(batch, *arguments)
        told.extend((queries.tables, queries.first_rows, queries.tile_sequences, queries.tile_first_queries))
        return queries

    described = DecodeBatch.paged
    monkeypatch.setattr(CapturedSteps, "_capture", replay)
    monkeypatch.setattr(DecodeBatch, "paged", paged)
    steps = CapturedSteps(runner._model, runner._buffers, runner._pool, runner._ops)
    with runner._ops.at_work():
        steps.warm_up()
    buffers = runner._buffers
    owned = {each.untyped_storage().data_ptr() for each in (buffers.tables, buffers.rows, buffers.zeros)}

    assert {each.untyped_storage().data_ptr() for each in told} == owned


def test_a_step_s_tokens_are_had_before_the_next_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps launched together are copied one by one: who asks for the second waits for two copies, not for all."""
    runner = static_runner("llama")
    prefill(runner, [0]).tokens()
    waits: list[int] = []

    class Arrival:
        def __init__(self, number: int) -> None:
            self.number = number

        def synchronize(self) -> None:
            waits.append(self.number)

    numbers = count()
    begin = runner._ops.begin_copy
    monkeypatch.setattr(
        runner._ops, "begin_copy", lambda tensor: begin(tensor)._replace(arrival=Arrival(next(numbers)))
    )
    launched = runner.launch([Span([7], len(PROMPTS[0]), TABLES[0], needs_logits=True)], num_steps=4)

    launched.tokens(0)
    launched.tokens(1)

    assert waits == [0, 1]
    assert next(numbers) == 4


def test_padded_batches_are_few_and_near() -> None:
    """Up to 256 rows there are some twenty sizes, none above 1.5 times what is wanted beyond 8 rows."""
    sizes = [padded_batch(num_rows, 256) for num_rows in range(1, 257)]

    assert len(set(sizes)) <= 24
    assert all(size >= num_rows for num_rows, size in enumerate(sizes, start=1))
    assert max(size / num_rows for num_rows, size in enumerate(sizes, start=1) if num_rows > 8) < 1.8
