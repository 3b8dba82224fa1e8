"""Three machines become a cluster by codes, and lose no request as they go. `make matrix`, as root, with iproute2."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from house.repository import ROOT
from system.joining.machines import JoiningMachine, machines

pytestmark = [
    pytest.mark.skipif(
        "BATON_MATRIX" not in os.environ or sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("tc"),
        reason="takes minutes and root: run `make matrix`",
    ),
    pytest.mark.timeout(900),
]
BITS_PER_SECOND = 1e9
MOST_SECONDS = 60.0
PROMPTS = tuple(f"What is {left} + {right}?" for left in range(10, 22) for right in (7, 30))
_RESULTS = ROOT / "bench" / "results" / "joining.json"
_NODES = '[[node]]\nrole = "worker"\nengine = "torch"\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[JoiningMachine]]:
    """Return three machines, the first with `baton up --lan`, the others joined; the plan is in the results."""
    folder = tmp_path_factory.mktemp("machines")
    (folder / "nodes.toml").write_text(_NODES)
    with machines(3, folder, BITS_PER_SECOND) as made:
        first, second, third = made
        first.start("up", "--lan", "-v", f"--nodes={folder / 'nodes.toml'}")
        code = first.printed(r"baton join (\d+-\S+)")
        second.start("join", code, f"--state-dir={second.state_dir}", "--name=second")
        second.printed("(child_serving)")
        code = _invited(first)
        began = time.monotonic()
        third.start(
            "join", code, f"--state-dir={third.state_dir}", "--name=third", "--engine=torch", "--address=10.79.0.1"
        )
        third.printed("(child_serving)")
        first.ask(PROMPTS[0])
        _note(first_answer_seconds=round(time.monotonic() - began, 1), plan=first.run("plan").stdout.splitlines())
        yield made


def _invited(first: JoiningMachine) -> str:
    return re.findall(r"baton join (\d+-\S+)", first.run("invite").stdout)[0]


def _note(**values: object) -> None:
    """Keep what was measured."""
    _RESULTS.write_text(json.dumps(_known() | values, indent=1) + "\n")


def _known() -> dict[str, Any]:
    return json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}


def _asked(first: JoiningMachine, pool: ThreadPoolExecutor) -> Iterator[str]:
    """Yield what is answered to all prompts, four at a time."""
    return pool.map(lambda prompt: str(first.ask(prompt)["choices"][0]["message"]["content"]), PROMPTS)


def _return(machine: JoiningMachine) -> None:
    """Have a machine go on, and wait until its worker serves once more."""
    num_served = machine.log.count("child_serving")
    machine.start("join", f"--state-dir={machine.state_dir}")
    machine.printed("(child_serving)" + "(?s:.*child_serving)" * num_served)


def test_the_first_answer_comes_within_a_minute_and_the_plan_names_all(cluster: Sequence[JoiningMachine]) -> None:
    """From the command on the last machine on: measured, loaded, its links known."""
    known = _known()

    assert known["first_answer_seconds"] <= MOST_SECONDS
    plan = "\n".join(known["plan"])
    assert all(name in plan for name in ("worker-torch", "second", "third"))


def test_guesses_burn_a_code_and_a_member_cannot_join_again(cluster: Sequence[JoiningMachine], tmp_path: Path) -> None:
    """All wrong ones are told alike; the right one that is burnt, too."""
    first, second, third = cluster
    code = _invited(first)
    number = code.partition("-")[0]
    wrong = [third.run("join", f"{number}-abandon-ability-able", *_fresh(tmp_path)) for _ in range(5)]
    right = second.run("join", code, *_fresh(tmp_path))
    again = second.run("join", code, f"--state-dir={second.state_dir}")

    assert {each.stderr for each in (*wrong, right)} == {
        "error: the code is wrong, or no longer holds: `baton invite` prints another\n"
    }
    assert "this machine has joined 10.79.0.1:8013 already" in again.stderr


def _fresh(folder: Path) -> Sequence[str]:
    return f"--state-dir={folder / 'fresh'}", "--port=8120", "--address=10.79.0.1"


def test_each_machine_stops_dies_and_returns_and_a_link_halves(cluster: Sequence[JoiningMachine]) -> None:
    """Under load, one after the other, the first machine by its worker: no answer is lost or another one."""
    first, *joined = cluster
    events, lost = [], 0
    with ThreadPoolExecutor(4) as pool:
        expected = list(_asked(first, pool))

        def happens(name: str, act: Callable[[], object], undo: Callable[[], object] = lambda: None) -> None:
            nonlocal lost
            answers = _asked(first, pool)
            seen = [next(answers)]
            began = time.monotonic()
            act()
            first.ask(PROMPTS[0])
            seconds = time.monotonic() - began
            undo()
            seen += answers
            lost += sum(got != wanted for got, wanted in zip(seen, expected, strict=True))
            events.append({"event": name, "seconds_until_an_answer": round(seconds, 2)})

        own = "serve worker"
        happens("worker of the first killed", lambda: first.send(signal.SIGKILL, own))
        for machine in joined:
            name = machine.namespace
            happens(
                f"{name} stopped, and goes on",
                lambda machine=machine: machine.send(signal.SIGSTOP),  # type: ignore[misc]
                lambda machine=machine: machine.send(signal.SIGCONT),  # type: ignore[misc]
            )
            happens(f"{name} killed", machine.fail)
            _return(machine)
            happens(f"{name} returned", lambda: None)
        happens("a link of half the rate", lambda: joined[0].shape(BITS_PER_SECOND / 2))

    moves = first.log.count("model_change")
    _note(events=events, requests_of_events=len(events) * (len(PROMPTS) + 1), lost_of_events=lost, moves=moves)
    assert lost == 0
    assert moves == 0


def test_a_machine_that_dies_and_returns_and_one_that_leaves_lose_no_request(cluster: Sequence[JoiningMachine]) -> None:
    """Under load: one loses power and goes on later, one leaves; answers are those that one machine alone gives."""
    first, second, third = cluster
    with ThreadPoolExecutor(4) as pool:
        expected = list(_asked(first, pool))
        dying = _asked(first, pool)
        seen = [next(dying)]
        second.fail()
        began = time.monotonic()
        seen += dying
        died_seconds = time.monotonic() - began
        _return(second)
        assert "second" in first.run("nodes").stdout
        leaving = _asked(first, pool)
        kept = [next(leaving)]
        left = third.run("leave", f"--state-dir={third.state_dir}")
        kept += leaving
        alone = list(_asked(first, pool))

    lost = sum(got != wanted for answers in (seen, kept, alone) for got, wanted in zip(answers, expected, strict=True))
    _note(requests=4 * len(PROMPTS), lost=lost, seconds_of_requests_after_a_death=round(died_seconds, 1))
    assert "✓ this machine has left" in left.stdout
    assert not (third.state_dir / "node.key").exists()
    assert lost == 0
    assert "third" not in first.run("nodes").stdout
