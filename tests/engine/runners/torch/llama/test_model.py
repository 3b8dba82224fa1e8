"""Baton's own forward pass computes what transformers' code does, and is used for nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from baton.engine.runners.base import Span
from baton.engine.runners.torch import TorchRunner, load_torch_runner
from baton.engine.runners.torch.llama.model import LlamaLayer
from baton.engine.runners.torch.llama.support import is_llama_like
from baton.engine.runners.torch.loader import ModelCode
from baton.engine.runners.torch.ops.cpu import checks
from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import run_layers
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import ALONE, team_of
from baton.engine.runners.torch.ops.cpu.ops import KernelDecodeStep
from baton.errors import ConfigurationError
from checkpoints import CHECKPOINT_NAMES, VOCABULARY_SIZE, CheckpointName, checkpoint, reference_generate

PROMPT = random.Random(3).choices(range(3, VOCABULARY_SIZE), k=150)
every_checkpoint = pytest.mark.parametrize("name", CHECKPOINT_NAMES)


def load(name: CheckpointName, model_code: ModelCode, dtype: str = "float32") -> TorchRunner:
    """Load a runner."""
    return load_torch_runner(checkpoint(name), model_id=name, num_blocks=64, dtype=dtype, model_code=model_code)


def logits_of_mixed_passes(runner: TorchRunner) -> np.ndarray:
    """Return the logits of passes in which prompts, chunks that begin anywhere and decode steps meet."""
    fragmented, consecutive, third = [9, 4, 5, 30, 2, 1, 7, 20, 21, 33], range(40, 50), [0, 3]
    passes = [
        [Span(PROMPT[:37], 0, fragmented, needs_logits=False), Span(PROMPT[:20], 0, third, needs_logits=True)],
        [
            Span(PROMPT[37:], 37, fragmented, needs_logits=True),
            Span([7], 20, third, needs_logits=True),
            Span(PROMPT[:130], 0, consecutive, needs_logits=False),
        ],
        [Span([8], 21, third, needs_logits=True), Span(PROMPT[130:], 130, consecutive, needs_logits=True)],
        [Span([5], 150, fragmented, needs_logits=True), Span([9], 22, third, needs_logits=True)],
    ]
    return np.concatenate([runner.forward(spans).rows() for spans in passes])


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """Make oneDNN's operators look broken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "product", lambda *_: torch.zeros(1, 96))
        checks.is_sound.cache_clear()
        yield
    checks.is_sound.cache_clear()


@every_checkpoint
def test_logits_equal_those_of_transformers_code(name: CheckpointName) -> None:
    """For mixed passes over scattered blocks, both forward passes give the same logits to rounding."""
    expected = logits_of_mixed_passes(load(name, "transformers"))

    logits = logits_of_mixed_passes(load(name, "baton"))

    assert np.abs(expected).max() > 1  # else closeness would say little
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@every_checkpoint
def test_transformers_code_generates_what_transformers_does(name: CheckpointName) -> None:
    """The code that serves all other families is exact too."""
    runner, output = load(name, "transformers"), list[int]()

    while len(output) < 24:
        tokens, start = (PROMPT, 0) if not output else (output[-1:], len(PROMPT) + len(output) - 1)
        output += runner.forward([Span(tokens, start, range(12), needs_logits=True)]).argmax()

    assert output == reference_generate(checkpoint(name), PROMPT, 24, guess=output)


@pytest.mark.usefixtures("without_onednn")
def test_broken_onednn_operators_are_not_used() -> None:
    """Where the private operators give wrong numbers, products are torch's own and logits stay right."""
    expected = logits_of_mixed_passes(load("qwen2", "transformers"))

    assert not checks.is_sound(torch.float32)
    np.testing.assert_allclose(logits_of_mixed_passes(load("qwen2", "baton")), expected, atol=1e-4)


def test_k_and_v_leave_before_the_layer_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's sink is called before its attention and MLP run, so that its transfer hides behind them."""
    runner, events = load("llama", "baton"), list[str]()
    finish = LlamaLayer._finish

    def recording(self: LlamaLayer, hidden: torch.Tensor, attended: torch.Tensor, adapted: Any) -> torch.Tensor:
        events.append(f"mlp {self._index}")
        return finish(self, hidden, attended, adapted)

    monkeypatch.setattr(LlamaLayer, "_finish", recording)
    runner.forward([Span(PROMPT, 0, range(10), True, layer_sink=lambda layer, _: events.append(f"sink {layer}"))])

    assert events == [event for layer in range(4) for event in (f"sink {layer}", f"mlp {layer}")]


def test_only_wanted_rows_pass_the_last_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 positions of which one needs logits, the last layer finishes one; of none, none."""
    runner, rows = load("llama", "baton"), list[tuple[int, int]]()
    finish = LlamaLayer._finish

    def recording(self: LlamaLayer, hidden: torch.Tensor, attended: torch.Tensor, adapted: Any) -> torch.Tensor:
        rows.append((self._index, len(hidden)))
        return finish(self, hidden, attended, adapted)

    monkeypatch.setattr(LlamaLayer, "_finish", recording)
    runner.forward([Span(PROMPT[:40], 0, range(3), needs_logits=True)])
    logits = runner.forward([Span(PROMPT[:40], 0, range(3), needs_logits=False)])

    assert rows == [(0, 40), (1, 40), (2, 40), (3, 1), (0, 40), (1, 40), (2, 40)]
    assert logits.rows().shape == (0, VOCABULARY_SIZE)


def test_a_variant_of_a_family_is_left_to_transformers(tmp_path: Path) -> None:
    """A gate that is not SiLU is not computed as if it were; asking for Baton's code is refused then."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        hidden_act="gelu", eos_token_id=2, bos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)

    assert not is_llama_like(model)
    with pytest.raises(ConfigurationError, match="model_code baton: LlamaForCausalLM"):
        load_torch_runner(tmp_path, model_id="m", num_blocks=4, model_code="baton")
    assert load_torch_runner(tmp_path, model_id="m", num_blocks=4)._model.name == "transformers"


def test_a_layer_with_parameters_of_its_own_is_left_to_transformers() -> None:
    """A parameter that Baton's layer knows nothing of must not be dropped silently."""
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    model.get_decoder().layers[0].self_attn.register_parameter("sinks", torch.nn.Parameter(torch.zeros(2)))

    assert not is_llama_like(model)


@every_checkpoint
@pytest.mark.parametrize("is_transposed", [False, True])
def test_logits_do_not_depend_on_the_layout_of_weights(
    monkeypatch: pytest.MonkeyPatch, name: CheckpointName, is_transposed: bool
) -> None:
    """One thread takes oneDNN's layout or transposed weights, whichever is faster on a machine."""
    expected = logits_of_mixed_passes(load(name, "transformers"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(checks, "is_transposed_faster", lambda: is_transposed)

    logits = logits_of_mixed_passes(load(name, "baton"))

    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "is_transposed", "tolerance"),
    [("float32", False, 1e-4), ("float32", True, 1e-4), ("bfloat16", False, 0.05), ("bfloat16", True, 0.05)],
)
def test_steps_of_few_rows_equal_the_layers_one_by_one(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_transposed: bool, tolerance: float
) -> None:
    """Kernels compute of all layers in one call what they compute in many, but for the order of sums."""
    if not (is_transposed or checks.can_multiply(getattr(torch, dtype))):
        pytest.skip("oneDNN is off here, or lays weights out in no panels")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(checks, "is_transposed_faster", lambda: is_transposed)
    if is_transposed:  # as on a CPU without instructions for products of half precision
        monkeypatch.setattr(checks, "is_sound", lambda asked: asked is torch.float32)
    runner = load("llama", "baton", dtype)
    tables = [[9, 4, 5], [0, 3, 8]]
    for table in tables:
        runner.forward([Span(PROMPT[:30], 0, table, needs_logits=False)])
    steps = [Span([7], 30, tables[0], needs_logits=True), Span([9], 30, tables[1], needs_logits=True)]

    streamed = runner.forward(steps).rows()
    monkeypatch.setattr(KernelDecodeStep, "serves", lambda *_: False)

    np.testing.assert_allclose(runner.forward(steps).rows(), streamed, rtol=1e-4, atol=tolerance)
    assert runner._model._decode_step is not None, "no layer is streamed"


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_team_computes_a_step_to_the_last_bit_of_one_thread(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_transposed: bool
) -> None:
    """Threads share out outputs and heads, never a sum; more of them than there are cores take turns."""
    if not (is_transposed or checks.can_multiply(getattr(torch, dtype))):
        pytest.skip("oneDNN is off here, or lays weights out in no panels")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(checks, "is_transposed_faster", lambda: is_transposed)
    if is_transposed:
        monkeypatch.setattr(checks, "is_sound", lambda asked: asked is torch.float32)
    runner = load("llama", "baton", dtype)
    step, tables = runner._model._decode_step, [[9, 4, 5], [0, 3, 8], [1, 2, 6]]
    assert isinstance(step, KernelDecodeStep)
    for table in tables:
        runner.forward([Span(PROMPT[:30], 0, table, needs_logits=False)])
    spans = [Span([7 + index], 30, table, needs_logits=True) for index, table in enumerate(tables)]

    for num_rows in (1, 2, 3):
        step._run_layers = partial(run_layers, ALONE)
        alone = runner.forward(spans[:num_rows]).rows()
        for num_threads in (2, 5):
            step._run_layers = partial(run_layers, team_of(num_threads))

            assert np.array_equal(runner.forward(spans[:num_rows]).rows(), alone)


def test_any_number_of_threads_computes_layers_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has as many as it has cores to spare."""
    if not checks.can_multiply(torch.float32):
        pytest.skip("oneDNN is off here, or lays weights out in no panels")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)

    assert isinstance(load("llama", "baton")._model._decode_step, KernelDecodeStep)
