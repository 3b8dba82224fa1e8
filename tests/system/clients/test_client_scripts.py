"""A sample of `make clients`: scripts whose clients are installed beside Baton, against the demo."""

from __future__ import annotations

import sys

import pytest

from baton.demo import checkpoint_dir
from system.cluster import Cluster
from tests.clients.plan import FOLDER
from tests.clients.runs import Outcome, run_script

_SAMPLE = {
    "python/openai_client.py": (
        "create",
        "stream",
        "usage",
        "logprobs",
        "structured",
        "errors",
        "hints",
        "abort",
        "cached",
    ),
    "python/anthropic_client.py": (
        "create",
        "stream",
        "usage",
        "structured",
        "models",
        "errors",
        "hints",
        "abort",
        "cached",
    ),
    "grpc/python/checks.py": (
        "models",
        "tokens",
        "usage",
        "logprobs",
        "stop",
        "structured",
        "errors",
        "deadline",
        "cancel",
        "health",
        "reflection",
        "request_id",
    ),
}
_LIMIT_SECONDS = 200.0


@pytest.mark.parametrize("script", _SAMPLE)
def test_a_client_works_unmodified(script: str, demo_cluster: Cluster) -> None:
    """In one process for all features, as `make clients` runs it."""
    command = (sys.executable, str(FOLDER / script))
    outcomes = run_script(command, _SAMPLE[script], demo_cluster, checkpoint_dir(), _LIMIT_SECONDS)

    assert {name: outcome.error for name, outcome in outcomes.items() if outcome.error} == {}


def test_a_script_that_says_nothing_has_failed(demo_cluster: Cluster) -> None:
    """With what it wrote before it ended."""
    command = (sys.executable, "-c", "import sys; sys.exit('no such client')")
    outcomes = run_script(command, ("create",), demo_cluster, checkpoint_dir(), _LIMIT_SECONDS)

    assert outcomes == {"create": Outcome(error="the script said nothing; exit status 1: no such client")}
