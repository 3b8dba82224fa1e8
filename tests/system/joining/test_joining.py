"""Three machines become a cluster by codes, and lose no request as they go. `make matrix`, as root, with iproute2."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from baton.demo import checkpoint_dir
from bench.results_file import describe_machine, write_results
from checkpoints import reference_generate
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
STOP_SECONDS = 3.0
PROMPTS = tuple(f"What is {left} + {right}?" for left in range(10, 22) for right in (7, 30))
ENGINES = {
    "torch and MLX": ("torch", "mlx", "torch"),
    "unlike mocks": ("m3-ultra", "dgx-spark", "m2"),
}
"""Of the first machine and of those that join: frameworks that compute, or presets whose timing mocks take."""
_RESULTS = ROOT / "bench" / "results" / "joining.json"
_BATON = "baton.cli"
"""What the command lines of its processes have."""


class Answer(NamedTuple):
    """What a client got."""

    content: str
    seconds: float


class JoinedCluster(NamedTuple):
    """Three machines, and what was measured of them."""

    name: str
    machines: Sequence[JoiningMachine]
    up: Sequence[str]
    """Command of the first machine."""
    numbers: dict[str, Any]

    def note(self, **values: object) -> None:
        """Keep what was measured."""
        self.numbers.update(values)
        known: dict[str, Any] = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
        write_results(_RESULTS, {**known, self.name: {"machine": describe_machine(), **self.numbers}})


@pytest.fixture(scope="module", params=ENGINES)
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[JoinedCluster]:
    """Return three machines, the first with `baton up --lan`, the others joined; the plan is in the results."""
    folder, engines = tmp_path_factory.mktemp("machines"), ENGINES[request.param]
    node = {"role": "worker", "engine": engines[0]} if "torch" in engines else {"role": "worker", **_mock(engines[0])}
    rows = (f"{key} = {json.dumps(value)}\n" for key, value in node.items())
    (folder / "nodes.toml").write_text("[[node]]\n" + "".join(rows))
    with machines(3, folder, BITS_PER_SECOND) as made:
        first, *others = made
        found = JoinedCluster(request.param, made, ("up", "--lan", "-v", f"--nodes={folder / 'nodes.toml'}"), {})
        first.start(*found.up)
        code = first.printed(r"baton join (\d+-\S+)")
        for machine, name, engine in zip(others, ("second", "third"), engines[1:], strict=True):
            began = time.monotonic()
            flags = [f"--state-dir={machine.state_dir}", f"--name={name}"]
            flags += [f"--engine={engine}"] if "torch" in engines else _mock_flags(engine)
            flags += ["--address=10.79.0.1"] if name == "third" else []  # the other one finds it by multicast DNS
            machine.start("join", code, *flags)
            machine.printed("(child_serving)")
            code = _invited(first)
        first.ask(PROMPTS[0])
        seconds, plan = round(time.monotonic() - began, 1), first.run("plan").stdout.rstrip().splitlines()
        found.note(engines=engines, first_answer_seconds=seconds, plan=[line.rstrip() for line in plan])
        yield found


def _mock(preset: str) -> Mapping[str, str]:
    return {"engine": "mock", "mock_hardware": preset}


def _mock_flags(preset: str) -> Sequence[str]:
    return "--engine=mock", f"--worker-arguments=--mock-hardware={preset}"


def _invited(first: JoiningMachine) -> str:
    return re.findall(r"baton join (\d+-\S+)", first.run("invite").stdout)[0]


def _timed(first: JoiningMachine, prompt: str) -> Answer:
    began = time.monotonic()
    content = str(first.ask(prompt)["choices"][0]["message"]["content"])
    return Answer(content, time.monotonic() - began)


def _asked(first: JoiningMachine, pool: ThreadPoolExecutor) -> Iterator[Answer]:
    """Yield what is answered to all prompts, four at a time."""
    return pool.map(lambda prompt: _timed(first, prompt), PROMPTS)


def _contents(answers: Iterator[Answer]) -> Sequence[str]:
    return [each.content for each in answers]


def _return(machine: JoiningMachine) -> None:
    """Have a machine go on, and wait until its worker serves once more."""
    num_served = machine.log.count("child_serving")
    machine.start("join", f"--state-dir={machine.state_dir}")
    machine.printed("(child_serving)" + "(?s:.*child_serving)" * num_served)


def test_the_first_answer_comes_within_a_minute_and_the_plan_names_all(cluster: JoinedCluster) -> None:
    """From the command on the last machine on: measured, loaded, its links known."""
    assert cluster.numbers["first_answer_seconds"] <= MOST_SECONDS
    plan = "\n".join(cluster.numbers["plan"])
    assert all(name in plan for name in ("worker-", "second", "third"))
    assert "ssl_transport_security" not in cluster.machines[0].log


def test_answers_are_those_of_transformers(cluster: JoinedCluster) -> None:
    """Whichever machines computed them, on which frameworks."""
    if "torch" not in cluster.numbers["engines"]:
        pytest.skip("mocks make answers up")
    for prompt in PROMPTS:
        answer = cluster.machines[0].ask(prompt, return_token_ids=True)
        token_ids = answer["choices"][0]["token_ids"]

        prompt_ids = answer["prompt_token_ids"]
        assert token_ids == reference_generate(checkpoint_dir(), prompt_ids, len(token_ids), guess=token_ids)


def test_guesses_burn_a_code_and_a_member_cannot_join_again(cluster: JoinedCluster, tmp_path: Path) -> None:
    """All wrong ones are told alike; the right one that is burnt, too."""
    first, second, third = cluster.machines
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


def test_each_machine_stops_dies_and_returns_and_a_link_halves(cluster: JoinedCluster) -> None:
    """Under load, one after the other: no answer is lost or another one. The first machine dies by its worker."""
    first, *joined = cluster.machines
    events: list[dict[str, object]] = []
    with ThreadPoolExecutor(4) as pool:
        expected = _contents(_asked(first, pool))

        def happens(name: str, act: Callable[[], object], undo: Callable[[], object] = lambda: None) -> None:
            """Let something happen while four clients ask, and be undone when all have their answers."""
            answers = _asked(first, pool)
            seen = [next(answers)]
            began = time.monotonic()
            act()
            asked = _timed(first, PROMPTS[0])
            seconds = time.monotonic() - began
            seen += answers
            undo()
            wrong = sum(
                got.content != wanted for got, wanted in zip([*seen, asked], [*expected, expected[0]], strict=True)
            )
            longest = max(each.seconds for each in seen)
            row = {"event": name, "requests": len(seen) + 1, "lost_or_wrong": wrong}
            row |= {"seconds_until_an_answer": round(seconds, 2), "longest_request_seconds": round(longest, 2)}
            events.append(row)

        def stopped_for_a_while() -> None:
            first.send(signal.SIGSTOP, _BATON)
            time.sleep(STOP_SECONDS)  # as long as it stands still
            first.send(signal.SIGCONT, _BATON)

        happens("first: its worker killed", lambda: first.send(signal.SIGKILL, "serve worker"))
        happens(f"first: all of it stopped for {STOP_SECONDS:.0f} s", stopped_for_a_while)
        for machine, name in zip(joined, ("second", "third"), strict=True):
            happens(f"{name}: stopped", partial(machine.send, signal.SIGSTOP), partial(machine.send, signal.SIGCONT))
            happens(f"{name}: killed", machine.fail)
            _return(machine)
            happens(f"{name}: returned", lambda: None)
        happens("second: its link at half the rate", lambda: joined[0].shape(BITS_PER_SECOND / 2))

    moves = first.log.count("model_change")
    cluster.note(events=events, moves=moves)
    assert [row for row in events if row["lost_or_wrong"]] == []
    assert moves == 0


def test_the_first_machine_dies_and_returns_and_the_others_go_on_with_it(cluster: JoinedCluster) -> None:
    """With it go gateway and router: clients are told, and whoever asks again has the same answer in the end."""
    first = cluster.machines[0]
    with ThreadPoolExecutor(4) as pool:
        expected = _contents(_asked(first, pool))
        asked = [pool.submit(first.ask_in_the_end, prompt) for prompt in PROMPTS]
        asked[0].result()
        first.fail()
        began = time.monotonic()
        first.start(*cluster.up)
        first.ask_in_the_end(PROMPTS[0])
        seconds = time.monotonic() - began
        answers = [each.result() for each in asked]
        while not {"second", "third"} <= set(re.findall(r"\b(second|third)\b", first.run("nodes").stdout)):
            assert time.monotonic() - began < 2 * MOST_SECONDS
        with_all = time.monotonic() - began

    cluster.note(first_returned={"seconds_until_an_answer": round(seconds, 1), "with_all_machines": round(with_all, 1)})
    assert [str(each["choices"][0]["message"]["content"]) for each in answers] == expected


def test_a_machine_that_dies_and_returns_and_one_that_leaves_lose_no_request(cluster: JoinedCluster) -> None:
    """Under load: one loses power and goes on later, one leaves; answers are those that one machine alone gives."""
    first, second, third = cluster.machines
    with ThreadPoolExecutor(4) as pool:
        expected = _contents(_asked(first, pool))
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

    lost = sum(
        got.content != wanted for answers in (seen, kept, alone) for got, wanted in zip(answers, expected, strict=True)
    )
    row = {"requests": 4 * len(PROMPTS), "lost_or_wrong": lost, "seconds_after_a_death": round(died_seconds, 1)}
    cluster.note(dies_and_leaves=row)
    assert "✓ this machine has left" in left.stdout
    assert not (third.state_dir / "node.key").exists()
    assert lost == 0
    assert "third" not in first.run("nodes").stdout
