"""What narrower wires lose, per family and for the demo model: measured, printed, and bounded.

The families' weights are random and sharpened, so that rounding shows far more than in trained models; bfloat16, whose
cost on such weights is known (test_bfloat16), is the measure. A wrong scale, a swapped head or a position out of place
exceeds the bounds by far.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copytree

import pytest

from baton.demo import checkpoint_dir
from baton.engine.runners.base import Runner
from checkpoints import CHECKPOINT_NAMES, FAMILY_NAMES, LATENT_NAMES, CheckpointName, checkpoint
from demo.evaluate import CONTEXT_LENGTHS
from exactness.kv.wire_quality import Quality, measure_needles, measure_quality
from exactness.loading import Framework, load_runner

BOUNDS = {
    "float16": (0.95, 1.0),
    "bfloat16": (0.88, 1.0),
    "affine8": (0.95, 5.0),
    "bfloat16/int8": (0.85, 6.0),
    "int8": (0.70, 10.0),
    "fp8": (0.40, 25.0),
}
"""Least top-1 agreement with a lossless wire, and largest logit error in units of that through bfloat16."""

KEPT: dict[str, float] = {"deepseek_v3": 0.95, "deepseek_v32": 0.5, "glm_moe_dsa": 0.5}
"""Part of that agreement which is left where rounded latents choose other experts, or an index other keys: of 200 keys
the checkpoints' index takes 24, and int8 keeps 0.46 and 0.59 of the best tokens."""

DECODERS: dict[CheckpointName, Framework] = {"llama": "mlx", "gemma3": "mlx", "deepseek_v3": "mlx"}
"""Who takes over where it is not torch itself."""


INDEXED_NAMES = ("deepseek_v32", "glm_moe_dsa")
NAMES: list[CheckpointName] = [*CHECKPOINT_NAMES, *FAMILY_NAMES, *LATENT_NAMES]
"""Every family where BATON_WIRE_FAMILIES=all, else those whose caches differ most."""
LENGTHS, NUM_NEEDLES = CONTEXT_LENGTHS, 40
"""Of the needles: all that are documented with BATON_WIRE_FAMILIES=all, else few."""
if os.environ.get("BATON_WIRE_FAMILIES") != "all":
    NAMES, LENGTHS, NUM_NEEDLES = ["llama", "mistral", "gemma3", "qwen3_moe"], (512,), 8


@pytest.mark.parametrize("name", NAMES)
def test_every_family_keeps_its_answers_through_narrower_wires(name: CheckpointName) -> None:
    """96 forced tokens after a hand-over of 160, past the sliding windows of those that have one."""
    prefill = load_runner("torch", checkpoint(name), num_blocks=32)
    decode = load_runner(DECODERS.get(name, "torch"), checkpoint(name), num_blocks=32)

    check(name, measure_quality(prefill, decode))
    prefill.close()
    decode.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name in INDEXED_NAMES])
def test_what_an_index_loses_is_by_its_choice_alone(name: CheckpointName, tmp_path: Path) -> None:
    """Where it takes every key, answers are kept as those of families without an index are."""
    folder = copytree(checkpoint(name), tmp_path / "all")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"index_topk": 512}))
    prefill, decode = (load_runner("torch", folder, num_blocks=32) for _ in range(2))

    check("every key", measure_quality(prefill, decode))
    prefill.close()
    decode.close()


def check(name: str, qualities: list[Quality]) -> None:
    """Print and bound what was measured."""
    for quality in qualities:
        print(
            f"{name:10} {quality.wire:14} {quality.bytes_share:.3f} of the bytes, top-1 {quality.top1_agreement:.3f}, "
            f"logit error {quality.logit_error:.5f}, divergence {quality.divergence_nats:.2e} nats"
        )
    unit = next(quality.logit_error for quality in qualities if quality.wire == "bfloat16")
    for quality in qualities:
        least_agreement, largest_error = BOUNDS[quality.wire]
        assert quality.top1_agreement >= least_agreement * KEPT.get(name, 1.0), quality
        assert 0 < quality.logit_error <= largest_error * unit, quality


@pytest.fixture
def demo() -> Runner:
    """Return the demo model on torch."""
    return load_runner("torch", checkpoint_dir(), num_blocks=LENGTHS[-1] // 16 + 32)


def test_the_demo_model_finds_needles_through_every_wire(demo: Runner) -> None:
    """At 512 tokens as many as through a lossless one, but for one; affine8, which needs vectors of 64, too."""
    needles = measure_needles(demo, lengths=LENGTHS, num_needles=NUM_NEEDLES)
    print("\n".join(map(str, needles)))
    found = {one.wire: one.num_right for one in needles if one.context_tokens == 512}
    check("demo", measure_quality(demo, demo))
    demo.close()

    assert list(found) == ["float32", "bfloat16", "float16", "int8", "affine8", "fp8", "bfloat16/int8"]
    assert found["float32"] >= NUM_NEEDLES - 1
    assert all(count >= found["float32"] - 1 for count in found.values()), found
