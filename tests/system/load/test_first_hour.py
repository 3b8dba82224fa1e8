"""`baton up` as a new user has it: the first answer is README's, and the demo's nodes stay small. `make matrix`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest

from system.plan import free_ports

pytestmark = [
    pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="takes minutes: run `make matrix`"),
    pytest.mark.timeout(900),
]
NUM_PROMPTS = 600
MOST_BYTES = 10**9
_WORDS = ("red", "cat", "town", "dog", "house", "nine", "blue", "doors")


class Up(NamedTuple):
    """A running demo."""

    process: psutil.Process
    url: str
    printed: str
    """All lines until it was up."""

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            content: dict[str, Any] = json.loads(answer.read())
        return content


@pytest.fixture(scope="module")
def demo() -> Iterator[Up]:
    """Start it without any option but ports."""
    ports = free_ports(["http", "grpc"])
    flags = ("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"]))
    command = (sys.executable, "-m", "baton.cli", "up", *flags)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield Up(psutil.Process(process.pid), f"http://127.0.0.1:{ports['http']}", "".join(lines))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_each_process_has_one_line_until_all_are_up(demo: Up) -> None:
    """Checks first, then who is healthy; no log line."""
    before, _, after = demo.printed.partition("Baton is up")

    assert before.count("is healthy on") == 5
    assert all(line.startswith("✓ ") for line in before.splitlines())
    assert "curl -s" in after


def test_the_first_answer_is_that_of_the_readme(demo: Up) -> None:
    """By whichever worker was the cheapest, or by both."""
    body = {"model": "baton-demo", "temperature": 0, "max_tokens": 64}
    answer = demo.ask("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "What is 12 + 30?"}]})

    assert answer["choices"][0]["message"]["content"] == "12 + 30 = 42"
    assert {answer["baton"]["prefill_node"], answer["baton"]["decode_node"]} <= {"worker-torch", "worker-mlx"}


def test_every_process_stays_below_a_gigabyte(demo: Up) -> None:
    """After 600 different prompts of 700 tokens, of which some are computed at once."""

    def ask(index: int) -> int:
        chance = random.Random(index)
        prompt = " ".join(f"{chance.choice(_WORDS)}{chance.randrange(1000)}" for _ in range(100))
        answer = demo.ask("/v1/completions", {"model": "baton-demo", "prompt": prompt, "max_tokens": 8})
        return int(answer["usage"]["prompt_tokens"])

    with ThreadPoolExecutor(4) as threads:
        num_tokens = sum(threads.map(ask, range(NUM_PROMPTS)))
    resident = {_name_of(process.cmdline()): process.memory_info().rss for process in demo.process.children()}
    print(f"\n{NUM_PROMPTS} prompts, {num_tokens} tokens: {resident}")

    assert set(resident) == {"gateway", "router", "cache-index", "worker-torch", "worker-mlx"}
    assert max(resident.values()) < MOST_BYTES


def _name_of(command: Sequence[str]) -> str:
    """Return the node's name, else the role."""
    return next((text.removeprefix("--node-id=") for text in command if text.startswith("--node-id=")), command[4])
