"""A request whose KV came from another node joins others that decode on MLX."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from baton.engine.engine import Engine
from baton.engine.events import Admitted, Ended, EngineEvent, Failed
from baton.engine.request import EngineRequest, Purpose, SamplingParams
from baton.engine.request_registry import deliver
from baton.engine.runners.base import Span
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.admission import SchedulerLimits
from baton.kv.stream import KvFrame
from checkpoints import checkpoint

pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import MlxRunner, load_mlx_runner
from baton.engine.runners.mlx.forward_pass.launched import MlxPass

TIMEOUT_SECONDS = 60.0
CONTEXT = 20


class Passes:
    """Launches of a runner, each as the first blocks of the sequences computed in it; before one it calls back."""

    def __init__(self, runner: MlxRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members: list[set[int]] = []
        self.calls: dict[int, Callable[[], None]] = {}
        launch = runner.launch

        def recorded(spans: Sequence[Span], **options: Any) -> MlxPass:
            self.calls.get(len(self.members), _nothing)()
            self.members.append({span.block_table[0] for span in spans})
            return launch(spans, **options)

        monkeypatch.setattr(runner, "launch", recorded)


def _nothing() -> None:
    """Do as it says."""


class Request:
    """A request whose KV has landed; it decodes once started."""

    def __init__(self, engine: Engine, runner: MlxRunner, name: str, num_tokens: int) -> None:
        self.has_ended, self.is_admitted = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []
        self._engine, self._name = engine, name
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens + 1, ignore_eos=True)
        prompt = tuple(range(3, 3 + CONTEXT))
        engine.submit(
            EngineRequest(name, prompt, params, purpose=Purpose.RECEIVE, is_cache_bypassed=True), self._listen
        )
        assert self.is_admitted.wait(TIMEOUT_SECONDS)
        spec = runner.info.layout.layers[0]
        draws = np.random.default_rng(0).standard_normal((spec.num_kv_heads, CONTEXT, spec.key_head_dim))
        data = draws.astype(np.float32).tobytes()
        for layer in range(runner.info.layout.num_layers):
            engine.write_kv(name, KvFrame(layer, 1, 0, CONTEXT, data, data))

    def start(self) -> None:
        """Let it decode."""
        self._engine.take_first_token(self._name, SampledToken(11))
        self._engine.commit_kv(self._name)

    def _listen(self, event: EngineEvent) -> None:
        if isinstance(event, Admitted):
            self.is_admitted.set()
        elif isinstance(event, Failed):
            self.errors.append(event.error)
        if isinstance(event, (Ended, Failed)):
            self.has_ended.set()


def test_a_join_costs_no_pass_and_no_running_request_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is in as many passes as it has tokens, one after the other; who joins shares those of the others."""
    runner = load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=64)
    passes = Passes(runner, monkeypatch)
    engine = Engine(runner, SchedulerLimits(max_batch_size=8), post=deliver)
    engine.start()
    try:
        first, second, joining = (
            Request(engine, runner, name, num) for name, num in zip("abc", (30, 30, 12), strict=True)
        )
        passes.calls[10] = joining.start

        def start_both() -> None:
            first.start()
            second.start()

        engine.call(start_both)  # between two passes: else the first might have decoded for long before the second
        for request in (first, second, joining):
            assert request.has_ended.wait(TIMEOUT_SECONDS)
            assert not request.errors
    finally:
        engine.close()

    numbers = {
        block: [number for number, members in enumerate(passes.members) if block in members]
        for block in set().union(*passes.members)
    }
    assert sorted(map(len, numbers.values())) == [12, 30, 30]
    assert all(shared == list(range(shared[0], shared[-1] + 1)) for shared in numbers.values())
    assert [len(members) for members in passes.members].count(3) == 12
