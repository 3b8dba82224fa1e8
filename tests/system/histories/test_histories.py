"""Must show 6 of trust: whatever happens to the processes, clients see what they were promised.

BATON_HISTORIES asks for as many, BATON_HISTORIES_SEED draws others; BATON_HISTORIES_OUT names a folder for the
histories and their table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.histories.campaign import Tally
from system.histories.checker import violations
from system.histories.scene import Fault, Scene, Script, drawn_script

NUM_HISTORIES = int(os.environ.get("BATON_HISTORIES", "200"))
SEED = os.environ.get("BATON_HISTORIES_SEED", "19")
OUT = os.environ.get("BATON_HISTORIES_OUT", "")
PLANTED = ("gap", "double", "order", "usage", "id")
"""Promises that a gateway breaks on purpose; see `planted/sitecustomize.py`."""
MOST_TRIES = 8
"""Histories in which a promise that is broken on purpose must show."""

pytestmark = [
    pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="takes half an hour: run `make matrix`"),
    pytest.mark.timeout(7200),
]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Return a cluster of mocks behind proxies."""
    with Scene() as scene:
        yield scene


def test_clients_see_what_they_were_promised(scene: Scene) -> None:
    """No gap, no double, no wrong token or text, one end, errors only where too little was left to serve."""
    tally = Tally(SEED)
    folder = Path(OUT) if OUT else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    for number in range(NUM_HISTORIES):
        script = drawn_script(f"{SEED} {number}", scene.oracle)
        tally.take(script, scene.play(script, seed=f"{SEED} {number}"), folder)

    print(f"\nseed {SEED}\n{tally.table()}")
    if folder:
        (folder / "histories.md").write_text(tally.report(PLANTED))
    assert tally.broken == {}


@pytest.mark.parametrize("name", PLANTED)
def test_a_promise_that_the_gateway_breaks_is_found(scene: Scene, name: str) -> None:
    """The same clients and faults, and a gateway that was tampered with."""
    gateway = scene.cluster.processes["gateway"]
    former, planted = gateway.environment, Path(__file__).parent / "planted"
    path = os.pathsep.join([str(planted), os.environ.get("PYTHONPATH", "")])
    gateway.environment = {**former, "PYTHONPATH": path, "BATON_PLANTED": name}
    try:
        scene.cluster.restart("gateway")
        found = next(filter(None, (_rules_broken(scene, name, number) for number in range(MOST_TRIES))), set())
    finally:
        gateway.environment = former
        scene.cluster.restart("gateway")

    assert name in found


def _rules_broken(scene: Scene, name: str, number: int) -> set[str]:
    drawn = drawn_script(f"{name} {number}", scene.oracle)
    script = Script([[Fault("kill", f"decode-{number % 2}", 0.6, 0.2)]], drawn.clients)
    return {violation.rule for violation in violations(scene.play(script).events)}
