"""Runs of clients' scripts: each client once, with all of its features that were asked for."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from system.cluster import Cluster
from system.plan import MODEL_NAME
from tests.clients.environments import script_environment

_SHOWN_CHARACTERS = 400
_QUESTION, _ANSWER = "What is 12 + 30?", "12 + 30 = 42"
_CLIENT_SECONDS = 120.0
_JSON_TEXT = re.compile(r'^  "text": "(.*)"', re.MULTILINE)
"""As grpcurl writes messages."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script said of a feature."""

    note: str = ""
    """For the table; empty: it passed, no more."""
    error: str = ""
    """Why it failed, in a line; empty: it passed."""
    skip: str = ""
    """Why it was not run."""
    seconds: float = 0.0
    """How long it took."""


def run_script(
    command: Sequence[str],
    features: Sequence[str],
    cluster: Cluster,
    model_dir: Path,
    limit_seconds: float,
    more: Mapping[str, str] | None = None,
) -> Mapping[str, Outcome]:
    """Return the outcome of each feature; one of which the script says nothing has failed.

    Args:
        command: Runs the script.
        features: What it is asked, its last arguments.
        cluster: What it asks.
        model_dir: The checkpoint that is served.
        limit_seconds: Longest time of all features together.
        more: Further variables for it.
    """
    host, port = cluster.http_address
    variables = {
        "BATON_URL": f"http://{host}:{port}",
        "BATON_GRPC": cluster.grpc_address,
        "BATON_MODEL": MODEL_NAME,
        "BATON_MODEL_DIR": str(model_dir),
        **(more or {}),
    }
    try:
        done = subprocess.run(
            (*command, *features),
            env=script_environment(variables),
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
        output, reason = done.stdout, f"exit status {done.returncode}: {_tail(done.stderr)}"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        reason = f"not within {limit_seconds:g} s: {_tail((error.stderr or b'').decode(errors='replace'))}"
    told = {line.pop("feature"): Outcome(**line) for line in _lines(output)}
    return {name: told.get(name) or Outcome(error=f"the script said nothing; {reason}") for name in features}


def run_client(command: Sequence[str], cluster: Cluster, secured: Mapping[str, str]) -> Outcome:
    """Return whether a page's program gives the answer, in clear and by TLS with a key, and says what a refusal was.

    Args:
        command: Runs it.
        cluster: What it asks.
        secured: Where TLS and a key are asked for: BATON_GRPC_TLS, BATON_CA and BATON_KEY.
    """
    started = time.monotonic()
    asked = ((cluster.grpc_address, {}, _ANSWER, 0), (secured["BATON_GRPC_TLS"], secured, _ANSWER, 0))
    unknown = {**secured, "BATON_KEY": "wrong"}
    for address, variables, expected, status in (*asked, (secured["BATON_GRPC_TLS"], unknown, "API key", 1)):
        done = subprocess.run(
            (*command, address, _QUESTION),
            env=script_environment(variables),
            capture_output=True,
            text=True,
            timeout=_CLIENT_SECONDS,
            check=False,
        )
        said = "".join(_JSON_TEXT.findall(done.stdout)) or done.stdout + done.stderr
        if bool(done.returncode) != bool(status) or expected not in said:
            return Outcome(error=f"expected {expected!r}, got status {done.returncode}, {_tail(said)}")
    return Outcome(seconds=round(time.monotonic() - started, 2))


def _lines(output: str) -> list[dict[str, str]]:
    """Return the lines of the script's frame; clients may print others."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"feature":')]


def _tail(text: str) -> str:
    return " ".join(text.split())[-_SHOWN_CHARACTERS:]
