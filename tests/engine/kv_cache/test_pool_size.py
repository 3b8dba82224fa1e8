"""A pool has the blocks that it is told to have, or as many as its device has room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity.reference_models import REFERENCE_MODELS
from baton.engine.kv_cache.pool_size import (
    DEFAULT_BOUNDS,
    RESERVE_BYTES,
    USUAL_BLOCKS,
    DeviceMemory,
    PoolBounds,
    PoolModel,
    choose_pool_size,
    pass_bytes,
)
from baton.errors import ConfigurationError

GB = 10**9
SHAPE = REFERENCE_MODELS["llama-3.1-8b"]
MODEL = PoolModel(SHAPE, 16, 16 * SHAPE.kv_bytes_per_token)
WORKSPACE = pass_bytes(SHAPE, DEFAULT_BOUNDS)
GPU = DeviceMemory("cuda:0", 80 * GB, 16 * GB, 63 * GB, is_main=False)
CPU = DeviceMemory("main memory", 64 * GB, 0, 40 * GB, is_main=True)


def blocks(memory: DeviceMemory, model: PoolModel = MODEL, bounds: PoolBounds = DEFAULT_BOUNDS) -> int:
    """Return how many blocks are chosen where nobody names a number."""
    return choose_pool_size(None, memory, model, bounds).num_blocks


def test_a_gpu_is_filled_up_to_its_share() -> None:
    """Of 72 of 80 GB the model has 16; the largest pass, the reserve and blocks have the rest, to less than a block."""
    chosen = choose_pool_size(None, GPU, MODEL, DEFAULT_BOUNDS)

    left = 72 * GB - 16 * GB - WORKSPACE - RESERVE_BYTES
    assert 0 <= left - chosen.num_blocks * MODEL.block_bytes < MODEL.block_bytes
    assert chosen.num_blocks > 10 * USUAL_BLOCKS
    assert chosen.cause.startswith("0.9 of 80 GB less 16 GB of the model, less ")
    just_free = GPU._replace(free_bytes=72 * GB - 16 * GB)
    assert choose_pool_size(None, just_free, MODEL, DEFAULT_BOUNDS).cause == chosen.cause


def test_nodes_that_share_a_gpu_have_the_shares_that_they_were_given() -> None:
    """What the first has taken counts as not free for the second, but not as the second's own."""
    bounds = PoolBounds(memory_share=0.45)
    second = DeviceMemory("cuda:0", 80 * GB, 16 * GB, 80 * GB - 36 * GB - 16 * GB, is_main=False)

    assert blocks(second, bounds=bounds) == (20 * GB - WORKSPACE - RESERVE_BYTES) // MODEL.block_bytes


def test_what_others_have_taken_of_a_gpu_is_not_counted_on() -> None:
    """Of the share 56 GB are left, of the GPU 10."""
    chosen = choose_pool_size(None, GPU._replace(free_bytes=10 * GB), MODEL, DEFAULT_BOUNDS)

    assert chosen.num_blocks == (10 * GB - WORKSPACE - RESERVE_BYTES) // MODEL.block_bytes
    assert chosen.cause.startswith("the 10 GB that are free beside the model, less ")


def test_a_pool_is_no_larger_than_what_a_full_batch_can_use() -> None:
    """A batch of 2 sequences of 131,072 tokens needs 16,384 blocks, whatever else a GPU has."""
    chosen = choose_pool_size(None, GPU, MODEL, PoolBounds(max_batch_size=2))

    assert chosen[:2] == (16_384, "no more than 2 sequences of 131072 tokens can use")


def test_a_short_context_leaves_a_pool_for_the_prefix_cache() -> None:
    """One sequence of 512 tokens needs 32 blocks; what others computed is kept in the usual number."""
    model = replace(MODEL, shape=replace(SHAPE, max_context_tokens=512))

    assert blocks(GPU, model, PoolBounds(max_batch_size=1)) == USUAL_BLOCKS


def test_a_device_with_room_for_one_block_has_it() -> None:
    """It serves prompts of a few tokens; only a device without room is refused."""
    memory = GPU._replace(free_bytes=WORKSPACE + RESERVE_BYTES + MODEL.block_bytes)

    assert blocks(memory) == 1


def test_larger_passes_leave_fewer_blocks() -> None:
    """Passes of 8,192 positions need gigabytes beside the pool."""
    larger = PoolBounds(max_step_tokens=8192)

    taken = (blocks(GPU) - blocks(GPU, bounds=larger)) * MODEL.block_bytes
    assert taken == pytest.approx(pass_bytes(SHAPE, larger) - WORKSPACE, abs=MODEL.block_bytes)
    assert taken > 4 * GB


def test_rows_beside_the_blocks_get_their_part() -> None:
    """Where the engine keeps copies of what is decoded from, blocks and copies share what is left."""
    with_rows = replace(MODEL, row_bytes=MODEL.block_bytes * 5 // 4)

    assert blocks(GPU, with_rows) == pytest.approx(blocks(GPU) * 4 / 9, abs=1)


def test_a_cpu_has_the_usual_number() -> None:
    """Several nodes may share a host, so that its memory is nobody's to fill."""
    model = PoolModel(replace(SHAPE, max_context_tokens=4096), 16, MODEL.block_bytes)

    assert choose_pool_size(None, CPU, model, DEFAULT_BOUNDS)[:2] == (USUAL_BLOCKS, "the usual number on a CPU")


def test_a_cpu_has_room_for_one_sequence_as_long_as_the_model_takes() -> None:
    """Else a model of 65,536 tokens would be refused what it can do."""
    model = PoolModel(replace(SHAPE, max_context_tokens=65_537), 16, MODEL.block_bytes)
    chosen = choose_pool_size(None, CPU, model, DEFAULT_BOUNDS)

    assert chosen[:2] == (4097, "as one sequence of 65537 tokens needs")


def test_a_cpu_with_little_memory_has_fewer() -> None:
    """A quarter of 8 GB has room for 953 blocks of 2 MiB."""
    chosen = choose_pool_size(None, CPU._replace(free_bytes=8 * GB), MODEL, DEFAULT_BOUNDS)

    assert chosen[:2] == (2 * GB // MODEL.block_bytes, "a quarter of the 8 GB that are free of 64 GB")


@pytest.mark.parametrize("memory", [GPU, CPU])
def test_a_number_that_fits_is_taken(memory: DeviceMemory) -> None:
    """Whatever would have been chosen: a share is no bound for who knows better."""
    num_fitting = memory.free_bytes // MODEL.block_bytes

    assert choose_pool_size(num_fitting, memory, MODEL, DEFAULT_BOUNDS)[:2] == (num_fitting, "num_blocks says so")


@pytest.mark.parametrize("memory", [GPU, CPU])
def test_a_number_that_does_not_fit_is_refused_by_name(memory: DeviceMemory) -> None:
    """The message says what would fit, and what would be chosen."""
    num_fitting = memory.free_bytes // MODEL.block_bytes
    message = (
        f"num_blocks {num_fitting + 1}: .* left of {memory.name}; {num_fitting} would, auto takes {blocks(memory)}$"
    )

    with pytest.raises(ConfigurationError, match=message):
        choose_pool_size(num_fitting + 1, memory, MODEL, DEFAULT_BOUNDS)


def test_what_others_of_the_process_need_is_left_to_them() -> None:
    """In main memory, where they are: a GPU has blocks alone. The refusal names them."""
    beside = PoolBounds(beside_bytes=36 * GB, beside_cause="max_outbox_bytes 30 GB + 6 GB in reserve")

    assert blocks(GPU, bounds=beside) == blocks(GPU)
    assert blocks(CPU, bounds=beside) == GB // MODEL.block_bytes
    with pytest.raises(
        ConfigurationError, match=r"left beside max_outbox_bytes 30 GB \+ 6 GB in reserve of main memory"
    ):
        choose_pool_size(2000, CPU, MODEL, beside)


@pytest.mark.parametrize("memory", [GPU._replace(own_bytes=75 * GB, free_bytes=4 * GB), CPU._replace(free_bytes=1)])
def test_a_device_that_the_model_fills_is_refused_with_its_figures(memory: DeviceMemory) -> None:
    """No pool of nothing: the node does not start."""
    with pytest.raises(ConfigurationError, match=r"num_blocks auto: .* GB.*: no room for a block of 2097152 bytes on"):
        choose_pool_size(None, memory, MODEL, DEFAULT_BOUNDS)


def test_a_number_is_refused_where_others_need_all_that_is_there() -> None:
    """The message says that nothing is left."""
    bounds = replace(DEFAULT_BOUNDS, beside_bytes=2 * CPU.free_bytes, beside_cause="the loader")

    with pytest.raises(ConfigurationError, match="do not fit into the 0 that are left beside the loader"):
        choose_pool_size(5, CPU, MODEL, bounds)


@pytest.mark.parametrize("num_blocks", [None, 5, 10**6])
def test_ranks_have_as_many_blocks_as_the_one_with_least_room(num_blocks: int | None) -> None:
    """Each gives its two numbers, whatever is asked for, and takes the least of all; else they would wait for ever."""
    gaps = iter([7, 9])

    def least(number: int) -> int:
        return number - next(gaps)

    if num_blocks is None:
        chosen = choose_pool_size(None, GPU, MODEL, DEFAULT_BOUNDS, least=least)
        assert chosen[:2] == (blocks(GPU) - 9, "another rank has room for no more")
    elif num_blocks == 5:
        assert choose_pool_size(5, GPU, MODEL, DEFAULT_BOUNDS, least=least).num_blocks == 5
    else:
        with pytest.raises(ConfigurationError, match=f"auto takes {blocks(GPU) - 9}"):
            choose_pool_size(num_blocks, GPU, MODEL, DEFAULT_BOUNDS, least=least)
    assert not list(gaps)


@given(st.integers(1, 200), st.integers(0, 100), st.integers(0, 200), st.floats(0.01, 1.0), st.booleans())
def test_what_is_chosen_always_fits(total: int, own: int, free: int, share: float, is_main: bool) -> None:
    """Into what is free, and beside the model into the share, for any device: or it is refused."""
    memory = DeviceMemory("any", total * GB, own * GB, free * GB, is_main=is_main)
    try:
        num_blocks = blocks(memory, bounds=PoolBounds(memory_share=share))
    except ConfigurationError:
        return

    assert 1 <= num_blocks <= memory.free_bytes // MODEL.block_bytes
    if not is_main:
        assert num_blocks * MODEL.block_bytes + memory.own_bytes <= memory.total_bytes * share


@pytest.mark.parametrize("memory", [GPU, CPU])
def test_a_plan_says_how_large_a_pool_is_where_there_is_room(memory: DeviceMemory) -> None:
    """Neither all of a GPU, nor the usual number on a CPU; where there is less room, what there is."""
    planned = PoolBounds(planned_bytes=100 * MODEL.block_bytes)
    small = memory._replace(free_bytes=WORKSPACE + RESERVE_BYTES + 10 * MODEL.block_bytes)

    assert blocks(memory, bounds=planned) == 100
    assert 10 <= blocks(small, bounds=replace(planned, planned_bytes=GB * 100)) < 1100


@pytest.mark.parametrize(
    ("memory", "state_bytes", "expected"),
    [
        (GPU, 0, 0),
        (GPU, GB, 63 // 4),
        (GPU, GB // 10, 2 * DEFAULT_BOUNDS.max_batch_size),
        (CPU, GB, 4),
        (CPU, GB // 10, 10 * 40 // 16),
    ],
)
def test_states_have_a_quarter_of_what_a_pool_may_have(memory: DeviceMemory, state_bytes: int, expected: int) -> None:
    """Two for each sequence of a batch are enough, and four the least."""
    model = replace(MODEL, shape=replace(SHAPE, state_bytes=state_bytes))

    assert choose_pool_size(None, memory, model, DEFAULT_BOUNDS).num_state_slots == expected


def test_what_states_take_is_not_there_for_blocks() -> None:
    """All slots of it, on a device as in main memory."""
    for memory in (GPU, CPU):
        model = replace(MODEL, shape=replace(SHAPE, state_bytes=GB // 8))
        chosen, without = (choose_pool_size(None, memory, each, DEFAULT_BOUNDS) for each in (model, MODEL))
        taken_bytes = chosen.num_state_slots * GB // 8
        with pytest.raises(ConfigurationError, match="would, auto takes") as refusal:
            choose_pool_size(10**9, memory, model, DEFAULT_BOUNDS)

        assert taken_bytes > GB
        assert chosen.num_blocks <= without.num_blocks
        num_fitting = int(str(refusal.value).split(" would")[0].rpartition("; ")[2])
        with pytest.raises(ConfigurationError) as refusal_without:
            choose_pool_size(10**9, memory, MODEL, DEFAULT_BOUNDS)
        num_fitting_without = int(str(refusal_without.value).split(" would")[0].rpartition("; ")[2])
        assert num_fitting_without - num_fitting == pytest.approx(taken_bytes / MODEL.block_bytes, abs=1)


def test_a_pass_holds_logits_of_its_positions_and_of_its_sequences() -> None:
    """Two float32 for each position and number of the vocabulary, eight float64 for each sequence of the batch."""
    positions = DEFAULT_BOUNDS.max_step_tokens
    more = pass_bytes(SHAPE, replace(DEFAULT_BOUNDS, max_batch_size=DEFAULT_BOUNDS.max_batch_size + 1)) - WORKSPACE
    logits = WORKSPACE - SHAPE.workspace_bytes(positions) - DEFAULT_BOUNDS.max_batch_size * more

    assert more == 8 * 8 * SHAPE.vocabulary_size
    assert logits == positions * 2 * 4 * SHAPE.vocabulary_size
