"""What a node measures of its wire formats at start."""

from __future__ import annotations

import math

import pytest

from baton.engine.runners.base import Span
from baton.kv.kv_format import KvDtype
from baton.node.profiling.wire_formats import measure_losses, measure_wires
from checkpoints import checkpoint
from engine.rig import mock_runner
from exactness.loading import Framework, load_runner


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_losses_follow_the_formats(framework: Framework) -> None:
    """Eight bits lose more than sixteen, fp8 more than int8; everything is measured, and small."""
    runner = load_runner(framework, checkpoint("llama"), num_blocks=32)
    prompt = Span(list(range(3, 40)), 0, [0, 1, 2], needs_logits=True)
    before = runner.forward([prompt]).rows().copy()
    abilities = {ability.dtype: ability for ability in measure_wires(runner, has_losses=True)}
    after = runner.forward([prompt]).rows()
    runner.close()

    assert list(abilities)[:3] == ["bfloat16", "float16", "int8"]
    assert 0 < abilities["float16"].key_loss < abilities["int8"].key_loss < abilities["fp8"].key_loss < 1
    assert 0 < abilities["float16"].value_loss < abilities["int8"].value_loss < abilities["fp8"].value_loss < 1
    assert min(ability.pack_bytes_per_second for ability in abilities.values()) > 0
    assert before == pytest.approx(after, abs=1e-6)


def test_who_only_receives_measures_no_losses() -> None:
    """The sender's count; a mock has none, and a node with few blocks cannot tell."""
    runner = load_runner("torch", checkpoint("llama"), num_blocks=4)
    mock = mock_runner()

    assert {ability.key_loss for ability in measure_wires(runner, has_losses=False)} == {math.inf}
    assert measure_losses(runner, (KvDtype.INT8,)) == {}
    assert measure_losses(mock, (KvDtype.INT8,)) == {}
    assert [ability.dtype for ability in measure_wires(mock, has_losses=True)] == ["int8", "fp8", "bfloat16"]
    runner.close()
