"""Models whose layers keep a state of the sequence: wherever a request goes on from, it gives transformers' tokens."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.engine import Engine
from baton.engine.events import Admitted, EngineEvent, TokenReady
from baton.engine.kv_cache.offload import Offload
from baton.engine.request import EngineRequest, KvExportSpec, Purpose
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from baton.kv.stream import KvFrame, KvProgress
from baton.prefill.kv_stream import FrameExport
from baton.wire.quantities import shape_from_proto, shape_to_proto
from checkpoints import HYBRID_NAMES, HubCheckpointName, checkpoint, reference_generate, reference_logits
from engine.rig import has_written
from exactness.handover import Generation, generate, greedy, held, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL

NUM_NEW_TOKENS = 8
FOLDER = checkpoint("qwen3_next")


@contextmanager
def engine_of(
    framework: Framework, folder: Path = FOLDER, *, num_blocks: int = 512, max_step_tokens: int = 96
) -> Iterator[Engine]:
    """Run an engine, which proves at its end that no slot is lost."""
    engine = start_engine(load_runner(framework, folder, num_blocks=num_blocks), max_step_tokens=max_step_tokens)
    try:
        yield engine
        engine.call(engine.scheduler.check_integrity)
    finally:
        engine.close()


def prompts_of(*lengths: int) -> list[list[int]]:
    """Return random prompts."""
    draw = random.Random(4)
    return [[draw.randrange(3, 512) for _ in range(length)] for length in lengths]


def answer(engine: Engine, name: str, prompt: list[int], folder: Path = FOLDER) -> Generation:
    """Generate alone, compare with transformers, and return what was told."""
    generation = generate(engine, name, prompt, greedy(NUM_NEW_TOKENS))
    output = generation.tokens()
    assert output == reference_generate(folder, prompt, NUM_NEW_TOKENS, guess=output)
    return generation


def num_cached(generation: Generation) -> int:
    """Return the positions that a request found in the prefix cache."""
    return generation.ended.prompt_work.num_cached_tokens


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("name", HYBRID_NAMES if RUNS_ALL else ["qwen3_next", "falcon_h1"])
def test_a_prefix_is_restored_at_every_boundary(name: HubCheckpointName, framework: Framework) -> None:
    """At the end of a prompt's last full block at once, elsewhere from the second request with that beginning on."""
    prompt, *others = prompts_of(70, 5, 6, 7)
    folder = checkpoint(name)
    with engine_of(framework, folder) as engine:
        first = generate(engine, "first", prompt, greedy(40))
        output = first.tokens()
        for end in range(BLOCK_TOKENS, 65, BLOCK_TOKENS):
            found = [
                num_cached(answer(engine, f"{end}-{index}", [*prompt[:end], *other], folder))
                for index, other in enumerate(others)
            ]
            assert found == ([64, 64, 64] if end == 64 else [end - BLOCK_TOKENS, end, end])
        assert num_cached(answer(engine, "next turn", [*prompt, *output, *others[0]], folder)) == 96


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_keys_and_values_from_host_and_disk_join_the_checkpoints_of_the_device(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints stay on the device, K and V leave it: a prefix whose state is gone with its process is computed.

    The pool holds one prompt, host memory less than the prompts need; copies are always worth their time.
    """
    for decision in ("_is_quicker", "_is_read_quicker"):
        monkeypatch.setattr(Offload, decision, lambda *_arguments, **_figures: True)
    prompts = prompts_of(70, 90, 81)
    found = []
    for host_blocks in (2**10, 12):
        runner = load_runner(framework, FOLDER, num_blocks=8)
        disk = DiskBlockStore(tmp_path, 2**26, cache_identity(runner.info.layout, BLOCK_TOKENS))
        disk.start()
        host_bytes = host_blocks * BLOCK_TOKENS * runner.info.layout.num_token_bytes()
        engine = start_engine(runner, max_step_tokens=96, host_bytes=host_bytes, disk=disk)
        monkeypatch.setattr(engine.scheduler.offload, "note_pass", lambda _seconds: None)
        cached = []
        for repeat in range(2):
            for index, prompt in enumerate(prompts):
                cached.append(num_cached(answer(engine, f"{repeat}-{index}", prompt)))
                assert has_written(engine, disk)
        engine.call(engine.scheduler.check_integrity)
        engine.close()
        found.append(engine.scheduler.offload.hits)
        assert cached == [0, 0, 0, 64, 80, 80]

    assert [(hits.host > 0, hits.disk > 0) for hits in found] == [(True, False), (True, True)]


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_preempted_requests_give_the_tokens_of_each_alone(framework: Framework) -> None:
    """What they had is gone but for checkpoints; no slot is lost."""
    prompts = prompts_of(50, 61, 33, 90)
    with engine_of(framework, num_blocks=14, max_step_tokens=40) as engine:
        with held(engine):
            generations = [generate(engine, f"r{index}", each, greedy(30)) for index, each in enumerate(prompts)]
        outputs = [generation.tokens() for generation in generations]

    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == reference_generate(FOLDER, prompt, 30, guess=output)
    assert sum(generation.ended.num_preemptions for generation in generations) > 0


@pytest.mark.parametrize(("num_lost", "has_token"), [(1, True), (0, False), (0, True), (4, False)])
def test_a_stream_that_ends_early_is_computed_here(num_lost: int, has_token: bool) -> None:
    """From where all of the state is: nothing of a part is of use, nor all of it before the first token is known."""
    (prompt,) = prompts_of(50)
    with engine_of("torch") as prefill, engine_of("torch") as decode:
        frames, token = exported(prefill, prompt)
        generation = Generation()
        request = EngineRequest("r", tuple(prompt), greedy(NUM_NEW_TOKENS), purpose=Purpose.RECEIVE)
        decode.submit(request, generation.events.put)
        assert isinstance(generation.events.get(timeout=60), Admitted)
        for frame in frames[: len(frames) - num_lost]:
            decode.write_kv("r", frame)
        if has_token:
            decode.take_first_token("r", token.token)
        decode.fall_back("r", 0 if num_lost else len(prompt))

        output = generation.tokens()

    assert output == reference_generate(FOLDER, prompt, NUM_NEW_TOKENS, guess=output)


def exported(engine: Engine, prompt: list[int]) -> tuple[list[KvFrame], TokenReady]:
    """Return what a prefill hands out: frames, and the first token."""
    items: queue.SimpleQueue[EngineEvent | KvFrame] = queue.SimpleQueue()
    layout = engine.runner.info.layout
    owed = KvProgress.begin(layout, 0, len(prompt))
    export = KvExportSpec(FrameExport(layout, owed, 1, items.put), token_begin=0)
    engine.submit(EngineRequest("p", tuple(prompt), greedy(1), purpose=Purpose.PREFILL, export=export), items.put)
    frames = []
    while not isinstance(item := items.get(timeout=60), TokenReady):
        if isinstance(item, KvFrame):
            frames.append(item)
    return frames, item


def test_a_state_travels_once_after_its_layer_of_the_last_positions() -> None:
    """K and V with every chunk; the frame says what it is and how many positions it stands for."""
    (prompt,) = prompts_of(100)
    with engine_of("torch", max_step_tokens=40) as engine:
        frames, _ = exported(engine, prompt)
        layout = engine.runner.info.layout

    states = [frame for frame in frames if frame.state]
    assert [frame.layer_begin for frame in states] == [0, 1, 2]
    assert [(frame.token_begin, frame.num_tokens) for frame in states] == [(0, 100)] * 3
    assert sum(frame.num_bytes for frame in states) == layout.num_state_bytes() == 3 * (3 * 160 + 4 * 16 * 24) * 4
    assert [frame.num_tokens for frame in frames if frame.layer_begin == 3] == [40, 40, 20]


def test_a_layer_with_a_state_beside_attention_sends_both() -> None:
    """K and V with every chunk, the state before those of the last positions: layers are told by their caches."""
    (prompt,) = prompts_of(50)
    with engine_of("torch", checkpoint("falcon_h1"), max_step_tokens=40) as engine:
        frames, _ = exported(engine, prompt)

    told = [(frame.layer_begin, frame.token_begin, frame.num_tokens) for frame in frames]
    assert told[:4] == [(layer, 0, 40) for layer in (1, 3, 5, 7)]
    assert told[4:] == [(layer, *((40, 10) if layer % 2 else (0, 50))) for layer in range(8)]
    assert [bool(frame.state) for frame in frames[4:]] == [True, False] * 4


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_adapters_are_refused_by_name(framework: Framework) -> None:
    """Before any weights are loaded."""
    with pytest.raises(ConfigurationError, match=r"lora sums: adapters of qwen3_next are not served"):
        load_runner(framework, FOLDER, adapters={"sums": FOLDER})


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_norms_of_a_folder_in_16_bits_are_not_rounded(framework: Framework, tmp_path: Path) -> None:
    """They multiply by 1 + weight, which mlx-lm adds in the folder's format: without care logits differ by a tenth."""
    for file in FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(FOLDER / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (prompt,) = prompts_of(40)
    expected = reference_logits(tmp_path, prompt).numpy()

    rows = load_runner(framework, tmp_path).forward([Span(prompt, 0, range(3), True, logits_from=0)]).rows()

    assert abs(rows - expected).max() <= 1e-4 * abs(expected).max()


def test_routers_are_told_of_states_and_of_attention_alone() -> None:
    """The first layer has no heads of K and V; bytes of a token are those of the others."""
    info = load_runner("torch", FOLDER).info

    assert shape_from_proto(shape_to_proto(info.shape)) == info.shape
    assert (info.shape.num_kv_heads, info.shape.kv_bytes_per_token) == (2, 2 * 2 * 32 * 4)
    assert info.shape.state_bytes == 3 * (3 * 160 + 4 * 16 * 24) * 4
