"""Families that cache latents give transformers' tokens wherever they run, and what they cache travels between engines.

Most cells run with BATON_MATRIX=1; a sample runs always.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from checkpoints import (
    LATENT_NAMES,
    VOCABULARY_SIZE,
    LatentCheckpointName,
    checkpoint,
    reference_generate,
    reference_logits,
)
from exactness.handover import generate, greedy, held, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL

PLACEMENTS: tuple[tuple[Framework | None, Framework], ...] = (
    (None, "torch"),
    (None, "mlx"),
    ("torch", "mlx"),
    ("mlx", "torch"),
)
"""(prefill engine or None for local, decode engine)."""
PROMPT_LENGTHS = (1, BLOCK_TOKENS + 1, 300)
NUM_NEW_TOKENS = 64
CELLS = [(name, *placement) for name in LATENT_NAMES for placement in PLACEMENTS]
SAMPLE = [("deepseek_v3", "torch", "mlx"), ("glm4_moe_lite", "mlx", "torch")]
every_family = pytest.mark.parametrize("name", LATENT_NAMES)
matrix = pytest.mark.skipif(not RUNS_ALL, reason="a cell of the matrix: run `make matrix`")


def _prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 1000 + length).choices(range(3, VOCABULARY_SIZE), k=length)


def _copy(name: LatentCheckpointName, folder: Path, **changes: Any) -> Path:
    copytree(checkpoint(name), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "prefill_framework", "decode_framework"), CELLS if RUNS_ALL else SAMPLE)
def test_output_equals_transformers(
    name: LatentCheckpointName, prefill_framework: Framework | None, decode_framework: Framework
) -> None:
    """Ragged prompts together, the longest in chunks, then again over what is cached on both sides."""
    folder = checkpoint(name)
    decode = start_engine(load_runner(decode_framework, folder), max_step_tokens=128)
    prefill = start_engine(load_runner(prefill_framework, folder), max_step_tokens=128) if prefill_framework else None
    try:
        for turn in range(2):
            started = [
                generate(decode, f"{turn}-{length}", _prompt(length), greedy(NUM_NEW_TOKENS), prefill=prefill)
                for length in PROMPT_LENGTHS
            ]
            for length, generation in zip(PROMPT_LENGTHS, started, strict=True):
                output = generation.tokens()

                expected = reference_generate(folder, _prompt(length), NUM_NEW_TOKENS, guess=output)
                assert output == expected, f"prompt of {length} tokens, turn {turn}"
    finally:
        for engine in (decode, prefill):
            if engine is not None:
                engine.close()


@every_family
@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_logits_are_those_of_transformers(name: LatentCheckpointName, framework: Framework) -> None:
    """Every position, to 1e-4 of the largest, in one pass and by steps over what another pass cached."""
    prompt = _prompt(90)
    expected = reference_logits(checkpoint(name), prompt).numpy()
    runner = load_runner(framework, checkpoint(name), num_blocks=16)

    rows = [runner.forward([Span(prompt, 0, range(6), True, logits_from=0)]).rows()]
    runner.forward([Span(prompt[:80], 0, range(6, 12), False)]).rows()
    rows.append(runner.forward([Span(prompt[80:], 80, range(6, 12), True, logits_from=80)]).rows())

    bound = 1e-4 * abs(expected).max()
    assert abs(rows[0] - expected).max() <= bound
    assert abs(rows[1] - expected[80:]).max() <= bound


@every_family
def test_both_engines_cache_the_same_latents_and_rotated_keys(name: LatentCheckpointName) -> None:
    """One latent and one rotated key a token, of which halves belong together: what a wire of one format carries."""
    prompt, told = _prompt(40), json.loads((checkpoint(name) / "config.json").read_text())
    cached = []
    for framework in ("torch", "mlx"):
        runner = load_runner(framework, checkpoint(name), num_blocks=4)
        runner.forward([Span(prompt, 0, range(3), True)]).argmax()
        cached.append([runner.read_kv(range(3), layer, 0, 40) for layer in range(told["num_hidden_layers"])])

    assert runner.info.layout.num_token_bytes() == 4 * (64 + 16) * told["num_hidden_layers"]
    for mine, theirs in zip(*cached, strict=True):
        for part, other in zip(mine, theirs, strict=True):
            expected = np.frombuffer(other, np.float32)
            assert abs(np.frombuffer(part, np.float32) - expected).max() <= 1e-4 * abs(expected).max()


@matrix
@every_family
@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("host_bytes", [0, 2**24], ids=["computed again", "moved"])
def test_preempted_requests_give_the_tokens_of_each_alone(
    name: LatentCheckpointName, framework: Framework, host_bytes: int
) -> None:
    """With a pool that holds less than half of them at once."""
    prompts = [_prompt(length) for length in (50, 61, 33, 48, 90, 16)]
    engine = start_engine(
        load_runner(framework, checkpoint(name), num_blocks=14), max_step_tokens=40, host_bytes=host_bytes
    )

    with held(engine):
        started = [generate(engine, f"r{index}", prompt, greedy(40)) for index, prompt in enumerate(prompts)]
    outputs = [generation.tokens() for generation in started]
    engine.close()

    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == reference_generate(checkpoint(name), prompt, 40, guess=output)
    assert sum(generation.ended.num_preemptions for generation in started) > 0


@matrix
@every_family
@pytest.mark.parametrize(("first", "second"), [("torch", "mlx"), ("mlx", "torch")])
def test_a_generation_goes_on_elsewhere(name: LatentCheckpointName, first: Framework, second: Framework) -> None:
    """With what it has said so far, computed again, or handed over."""
    prompt, engines = _prompt(70), [start_engine(load_runner(each, checkpoint(name))) for each in (first, second)]
    expected = reference_generate(checkpoint(name), prompt, 40)

    said = generate(engines[0], "before", prompt, greedy(17)).tokens()
    alone = generate(engines[1], "alone", prompt, greedy(40), output=said).tokens(17)
    handed = generate(engines[0], "back", prompt, greedy(40), output=[*said, *alone[:9]], prefill=engines[1]).tokens(26)
    for engine in engines:
        engine.close()

    assert [*said, *alone] == expected
    assert handed == expected[26:]


@pytest.mark.parametrize("framework", ["torch", "mlx"] if RUNS_ALL else ["mlx"])
def test_kimi_is_deepseek_by_another_name(framework: Framework, tmp_path: Path) -> None:
    """Transformers does not know the name."""
    folder = _copy("deepseek_v3", tmp_path / "kimi", model_type="kimi_k2")
    engine = start_engine(load_runner(framework, folder))

    output = generate(engine, "kimi", _prompt(30), greedy(16)).tokens()
    engine.close()

    assert output == reference_generate(checkpoint("deepseek_v3"), _prompt(30), 16, guess=output)


@every_family
def test_layers_that_predict_ahead_are_left_out(name: LatentCheckpointName, tmp_path: Path) -> None:
    """The hub's folders have one behind the last; folders of MLX's do not, and are the same model."""
    folder = _copy(name, tmp_path / "mtp")
    tensors = load_file(folder / "model.safetensors")
    ahead = {tensor.replace(".3.", ".4."): value.clone() for tensor, value in tensors.items() if ".layers.3." in tensor}
    save_file(tensors | ahead, folder / "model.safetensors", {"format": "pt"})

    with_layer, without = read_checkpoint(folder), read_checkpoint(checkpoint(name))
    runner = load_runner("mlx", folder, num_blocks=4)

    assert with_layer.weights_digest(is_full=True) == without.weights_digest(is_full=True)
    assert with_layer.num_parameters == without.num_parameters
    assert np.isfinite(runner.forward([Span(_prompt(20), 0, range(2), True)]).rows()).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topk_method", "group_limited_greedy"),
        ("scoring_func", "softmax"),
        ("moe_layer_freq", 2),
        ("kv_lora_rank", None),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_variants_are_refused_by_the_name_of_the_field(field: str, value: object, tmp_path: Path) -> None:
    """From the configuration, before any weight is read."""
    with pytest.raises(ConfigurationError, match=f"{field}: .*expected .*, got {value!r}"):
        read_checkpoint(_copy("deepseek_v3", tmp_path / "copy", **{field: value}))


def test_rotations_that_look_beyond_the_position_are_refused(tmp_path: Path) -> None:
    """And those that no engine computes for the family."""
    scaling = {"type": "llama3", "factor": 8.0}

    with pytest.raises(ConfigurationError, match="rope_type: deepseek_v3: expected default or yarn, got 'llama3'"):
        read_checkpoint(_copy("deepseek_v3", tmp_path / "copy", rope_scaling=scaling))


def test_latents_are_not_kept_in_8_bits(tmp_path: Path) -> None:
    """mlx-lm's attention takes them plain."""
    from baton.engine.runners.mlx import load_mlx_runner

    with pytest.raises(ConfigurationError, match=r"kv_quantization: .* deepseek_v3 takes plain K and V alone"):
        load_mlx_runner(checkpoint("deepseek_v3"), model_id="m", num_blocks=4, is_kv_quantized=True)


@pytest.mark.parametrize("framework", ["torch", "mlx"] if RUNS_ALL else ["mlx"])
def test_the_bias_of_experts_stays_in_32_bits(framework: Framework) -> None:
    """Whatever the dtype of activations is: experts are chosen by it."""
    runner: Any = load_runner(framework, checkpoint("deepseek_v3"), dtype="bfloat16", num_blocks=4)

    layer = runner._model._model.model.layers[-1] if framework == "torch" else runner._backbone._layers[-1]
    assert str(layer.mlp.gate.e_score_correction_bias.dtype).endswith("float32")
