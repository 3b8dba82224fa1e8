"""Passes that break when others have begun to build on them: nobody keeps what they should have computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton.engine.events import Admitted, Failed
from baton.engine.request import EngineRequest, KvExportSpec, Purpose
from baton.engine.runners.mock.state import kv_of, states_of
from baton.engine.sampling import SampledToken
from baton.kv.stream import KvFrame
from engine.faulty_runners import GarblingRunner
from engine.rig import LAYOUT, Listening, Rig, expected_tokens, mock_runner, prompt_of, request_of
from engine.stepper import Exported

BAD_TOKEN = 12
SHARED = prompt_of(12)
PROMPT = (*SHARED, 3, 6)
"""Begins with the blocks that the broken pass should have filled."""


def _garbling_runner(on_break: Callable[[], None]) -> GarblingRunner:
    runner = mock_runner(kind=GarblingRunner)
    assert isinstance(runner, GarblingRunner)
    assert BAD_TOKEN not in (*SHARED, *prompt_of(40, seed=3))
    runner.bad_token, runner.on_break = BAD_TOKEN, on_break
    return runner


@contextmanager
def _coming_behind_what_breaks(request: EngineRequest) -> Iterator[tuple[Rig, Listening]]:
    """Run an engine, and hear of a request that comes while the pass is under way that breaks."""
    came: list[Listening] = []
    rig = Rig(_garbling_runner(lambda: came.append(rig.submit(request))))
    broken = rig.submit(request_of((*SHARED, BAD_TOKEN), "broken"))
    beside = rig.submit(request_of(prompt_of(40, seed=3), "beside"))
    with rig:
        assert isinstance(broken.until(Failed), Failed)
        yield rig, came[0]
        assert beside.result() == expected_tokens(prompt_of(40, seed=3), 8)


def test_who_generates_says_its_own() -> None:
    """It is computed behind the broken pass."""
    with _coming_behind_what_breaks(request_of(PROMPT)) as (rig, listening):
        assert listening.result() == expected_tokens(PROMPT, 8)
        assert rig.generate(request_of((*PROMPT, 4), "later")) == expected_tokens((*PROMPT, 4), 8)


def test_what_is_handed_out_is_right() -> None:
    """Cached blocks leave before the pass, and what has left is not sent again."""
    exported = Exported()
    request = request_of(PROMPT, purpose=Purpose.PREFILL, export=KvExportSpec(exported))
    with _coming_behind_what_breaks(request) as (_, listening):
        assert listening.result() == expected_tokens(PROMPT, 1)
        exported.check(list(PROMPT))
        assert len(exported.positions) == LAYOUT.num_layers * len(PROMPT)


def test_who_receives_asks_for_what_is_not_here() -> None:
    """It is told what it has when that is known."""
    with _coming_behind_what_breaks(request_of(PROMPT, purpose=Purpose.RECEIVE)) as (rig, listening):
        admitted = listening.until(Admitted)
        assert isinstance(admitted, Admitted)
        for frame in _frames(PROMPT, admitted.num_cached_tokens):
            rig.engine.write_kv("r", frame)
        rig.engine.take_first_token("r", SampledToken(expected_tokens(PROMPT, 1)[0]))
        rig.engine.commit_kv("r")
        assert listening.result() == expected_tokens(PROMPT, 8)


def _frames(prompt: tuple[int, ...], start: int) -> list[KvFrame]:
    """Return the prompt's KV from a position on, a frame for each layer."""
    states = states_of(prompt[start:], start, LAYOUT.num_layers)
    kv = [kv_of(states[layer], spec, LAYOUT.dtype) for layer, spec in enumerate(LAYOUT.layers)]
    return [KvFrame(layer, 1, start, len(prompt) - start, *each) for layer, each in enumerate(kv)]
