"""The last layer computes the positions whose logits are wanted, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from baton.engine.runners.base import Span
from baton.engine.runners.torch import TorchRunner, load_torch_runner
from baton.engine.runners.torch.transformers_model import ATTENTION_NAME, attend
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint

every_checkpoint = pytest.mark.parametrize("name", CHECKPOINT_NAMES)


def load_runner(name: CheckpointName) -> TorchRunner:
    """Load a runner in transformers' code."""
    return load_torch_runner(checkpoint(name), model_id=name, num_blocks=16, model_code="transformers")


@contextmanager
def rows_through(select: Callable[[torch.nn.Module], torch.nn.Module], runner: TorchRunner) -> Iterator[list[int]]:
    """Record the number of rows in each call of a module of the model."""
    rows = list[int]()
    hook = select(runner._model._model).register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[1]))
    yield rows
    hook.remove()


def last_mlp(model: torch.nn.Module) -> torch.nn.Module:
    """Return the MLP of the last layer."""
    return model.get_decoder().layers[-1].mlp


@every_checkpoint
def test_one_position_per_wanted_span_passes_the_last_mlp(name: CheckpointName) -> None:
    """Of a prompt of 40 and a decode step that want logits and a chunk that wants none, two positions are computed."""
    runner = load_runner(name)
    runner.forward([Span([5, 6, 7], 0, [8], needs_logits=False)])
    spans = [
        Span(range(10, 50), 0, [0, 1, 2], needs_logits=True),
        Span(range(60, 80), 0, [4, 5], needs_logits=False),
        Span([9], 3, [8], needs_logits=True),
    ]

    with rows_through(last_mlp, runner) as rows:
        logits = runner.forward(spans).rows()

    assert rows == [2]
    assert logits.shape == (2, 512)


def test_no_position_passes_the_last_mlp_when_no_logits_are_wanted() -> None:
    """A chunk in the middle of a prompt leaves the last layer after its K and V."""
    runner = load_runner("llama")

    with rows_through(last_mlp, runner) as rows:
        logits = runner.forward([Span(range(10, 50), 0, [0, 1, 2], needs_logits=False)])

    assert rows == []
    assert logits.argmax() == []
    assert logits.rows().shape == (0, 512)


def test_all_positions_pass_the_other_layers() -> None:
    """Only the last layer is cut short."""
    runner = load_runner("llama")

    with rows_through(lambda model: model.get_decoder().layers[-2].mlp, runner) as rows:
        runner.forward([Span(range(10, 50), 0, [0, 1, 2], needs_logits=True)])

    assert rows == [40]


def test_transformers_builds_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask of all tokens by all tokens is made: the attention function gets none, also where there is a window."""
    runner, masks = load_runner("mistral"), list[object]()

    def recording(module: object, query: object, key: object, value: object, mask: object, **kwargs: Any) -> Any:
        masks.append(mask)
        return attend(module, query, key, value, mask, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION_NAME, recording)
    runner.forward([Span(range(10, 50), 0, [0, 1, 2], needs_logits=False), Span([7], 0, [5], needs_logits=False)])

    assert masks == [None] * 4
