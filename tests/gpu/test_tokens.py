"""Greedy float32 output on the device is transformers' on the same device: token for token, whatever happens beside."""

from __future__ import annotations

import pytest

from baton.engine.engine import Engine
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from checkpoints import (
    CHECKPOINT_NAMES,
    FAMILY_NAMES,
    HYBRID_NAMES,
    LATENT_NAMES,
    CheckpointName,
    checkpoint,
    reference_logits,
)
from exactness.handover import Generation, generate, greedy, held, start_engine
from exactness.loading import load_runner
from gpu.device import BLOCK_TOKENS, LLAMA_LIKE, device_runner, prompt_of
from gpu.equality import check_tokens

OTHER_NAMES: tuple[CheckpointName, ...] = (
    *("minimax_m2", "gemma3_vl", "ministral3", "qwen3_vl", "gemma4_e2b", "gemma4_26b"),
    *("yarn_llama", "yarn_gpt_oss"),
)
FAMILIES: list[tuple[CheckpointName, bool | None]] = [
    *((name, has_graphs) for name in (*CHECKPOINT_NAMES, "wide_llama") for has_graphs in (True, False)),
    *((name, None) for name in (*FAMILY_NAMES, *HYBRID_NAMES, *LATENT_NAMES, *OTHER_NAMES)),
]
"""Checkpoints, and whether decode is captured; None: where it can be."""
NUM_NEW_TOKENS = 48
LENGTHS = (1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 75, 300)


def ids_of(cases: list[tuple[CheckpointName, bool | None]]) -> list[str]:
    """Return what tests are called."""
    words = {True: "-graphs", False: "-no-graphs", None: ""}
    return [f"{name}{words[has_graphs]}" for name, has_graphs in cases]


@pytest.mark.parametrize(("name", "has_graphs"), FAMILIES, ids=ids_of(FAMILIES))
def test_output_equals_transformers(name: CheckpointName, has_graphs: bool | None) -> None:
    """Ragged neighbours, prompts in chunks, again over what is cached, then all of it as a prompt."""
    runner = device_runner(checkpoint(name), has_graphs=has_graphs)
    assert isinstance(runner, CudaGraphRunner) == (name in LLAMA_LIKE and has_graphs is not False)
    engine = start_engine(runner, max_step_tokens=128)
    try:
        for turn in ("cold", "warm"):
            running = [
                generate(engine, f"{turn}-{length}", prompt_of(length), greedy(NUM_NEW_TOKENS)) for length in LENGTHS
            ]
            for length, generation in zip(LENGTHS, running, strict=True):
                output = generation.tokens()
                check_tokens(checkpoint(name), prompt_of(length), output)
                if turn == "warm" and length > BLOCK_TOKENS:
                    assert generation.ended.prompt_work.num_cached_tokens > 0
        longer = [*prompt_of(75), *output[:20]]
        check_tokens(checkpoint(name), longer, generate(engine, "longer", longer, greedy(NUM_NEW_TOKENS)).tokens())
        engine.call(engine.scheduler.check_integrity)
    finally:
        engine.close()


PREEMPTED: tuple[CheckpointName, ...] = ("llama", "qwen3", "gemma2", "gpt_oss", "qwen3_next", "deepseek_v3")


@pytest.mark.parametrize("name", PREEMPTED)
@pytest.mark.parametrize("host_bytes", [0, 2**24], ids=["computed again", "moved"])
def test_preempted_requests_give_the_tokens_of_each_alone(name: CheckpointName, host_bytes: int) -> None:
    """With a pool that holds less than half of them at once, blocks come back from host memory or are computed."""
    prompts = [prompt_of(length, 3) for length in (50, 61, 33, 48, 90, 16)]
    engine = start_engine(device_runner(checkpoint(name), num_blocks=14), max_step_tokens=40, host_bytes=host_bytes)
    with held(engine):
        generations = [generate(engine, f"r{index}", each, greedy(40)) for index, each in enumerate(prompts)]
    outputs = [generation.tokens() for generation in generations]
    num_moved = engine.scheduler.offload.store.num_blocks
    engine.close()

    for prompt, output in zip(prompts, outputs, strict=True):
        check_tokens(checkpoint(name), prompt, output)
    assert sum(generation.ended.num_preemptions for generation in generations) > 0
    assert (num_moved > 0) == (host_bytes > 0)


HANDED_OVER: tuple[CheckpointName, ...] = ("llama", "mistral", "gemma3", "gpt_oss", "qwen3_next", "deepseek_v3")


@pytest.mark.parametrize("name", HANDED_OVER)
@pytest.mark.parametrize("to_device", [False, True], ids=["device-to-cpu", "cpu-to-device"])
def test_a_prompt_may_be_computed_elsewhere(name: CheckpointName, to_device: bool) -> None:
    """K and V cross between device and CPU layer by layer, also behind a prefix that both have, and broken off."""
    engines = [
        start_engine(runner, max_step_tokens=96)
        for runner in (device_runner(checkpoint(name)), load_runner("torch", checkpoint(name)))
    ]
    decode, prefill = engines if to_device else reversed(engines)
    try:
        for turn in ("cold", "warm"):
            running = [
                generate(decode, f"{turn}-{length}", prompt_of(length), greedy(NUM_NEW_TOKENS), prefill=prefill)
                for length in LENGTHS
            ]
            for length, generation in zip(LENGTHS, running, strict=True):
                check_tokens(checkpoint(name), prompt_of(length), generation.tokens())
        _check_broken(name, decode, prefill)
    finally:
        for engine in engines:
            engine.close()


def _check_broken(name: CheckpointName, decode: Engine, prefill: Engine) -> None:
    prompt = prompt_of(200, 5)
    broken: Generation = generate(decode, "broken", prompt, greedy(NUM_NEW_TOKENS), prefill=prefill, num_frames=6)
    check_tokens(checkpoint(name), prompt, broken.tokens())


def test_transformers_itself_computes_float32() -> None:
    """The yardstick on the device is that of the CPU: its logits differ from float64's by rounding alone."""
    import torch

    prompt = prompt_of(90)
    narrow = reference_logits(checkpoint("llama"), prompt)
    wide = reference_logits(checkpoint("llama"), prompt, dtype=torch.float64)

    assert float((narrow - wide).abs().max() / wide.abs().max()) < 1e-4
