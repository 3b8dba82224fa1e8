"""What the pod of `helm test` runs, against a gateway that is ready, late, or wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from charts.render import CHART, read_example, render
from http_double import Answer, Request, serving
from tests.charts.rendering import find, manifests


@pytest.mark.parametrize(("num_unready", "num_tokens", "is_passed"), [(0, 4, True), (2, 4, True), (0, 3, False)])
def test_it_passes_where_four_tokens_come(num_unready: int, num_tokens: int, is_passed: bool) -> None:
    """It waits for a gateway that is starting, and fails where the answer is short."""
    with _gateway(num_unready, num_tokens) as (url, requests):
        status = _run(url)

    assert (status == 0) == is_passed
    assert [path for path, _, _ in requests] == ["/ready"] * (num_unready + 1) + ["/v1/completions"]
    assert requests[-1][2]["model"] == "baton-demo"


def test_it_shows_its_key() -> None:
    """With `test.apiKeySecret` the key comes as a variable, perhaps with a line feed."""
    with _gateway(0, 4) as (url, requests):
        status = _run(url, API_KEY="secret\n")

    assert status == 0
    assert [key for _, key, _ in requests] == ["Bearer secret", "Bearer secret"]


def test_the_chart_runs_this_very_file() -> None:
    """The pod's argument is the script, line by line."""
    rendered = render(read_example("minimal"))["baton/templates/tests/completion.yaml"]
    script = (CHART / "files" / "completion_test.py").read_text("utf-8")

    assert all(line.strip() in rendered for line in script.splitlines())


def test_its_log_can_be_read_when_it_has_succeeded() -> None:
    """`helm test --logs` ended with an error where success deleted the pod; the next test replaces it."""
    pod = find(manifests("minimal"), "Pod", "baton-test")

    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def _run(url: str, **variables: str) -> int:
    environment = {**os.environ, "GATEWAY": url, "MODEL": "baton-demo", **variables}
    script = str(CHART / "files" / "completion_test.py")
    return subprocess.run([sys.executable, script], env=environment, capture_output=True, timeout=300).returncode


@contextmanager
def _gateway(num_unready: int, num_tokens: int) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    requests: list[tuple[str, str, Any]] = []

    def answer(request: Request) -> Answer:
        body = json.loads(request.body) if request.body else None
        requests.append((request.path, request.headers.get("Authorization", ""), body))
        if request.method == "POST":
            return Answer(200, json.dumps({"usage": {"completion_tokens": num_tokens}}).encode())
        status = 503 if len(requests) <= num_unready else 200
        return Answer(status, json.dumps({"status": "ready", "cause": "starting"}).encode())

    with serving(answer) as url:
        yield url, requests
