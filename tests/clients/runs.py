"""Runs of clients' scripts: each client once, with all of its features that were asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from system.cluster import Cluster
from system.plan import MODEL_NAME
from tests.clients.environments import script_environment

_SHOWN_CHARACTERS = 400


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
    command: Sequence[str], features: Sequence[str], cluster: Cluster, model_dir: Path, limit_seconds: float
) -> Mapping[str, Outcome]:
    """Return the outcome of each feature; one of which the script says nothing has failed."""
    host, port = cluster.http_address
    variables = {
        "BATON_URL": f"http://{host}:{port}",
        "BATON_GRPC": cluster.grpc_address,
        "BATON_MODEL": MODEL_NAME,
        "BATON_MODEL_DIR": str(model_dir),
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


def _lines(output: str) -> list[dict[str, str]]:
    """Return the lines of the script's frame; clients may print others."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"feature":')]


def _tail(text: str) -> str:
    return " ".join(text.split())[-_SHOWN_CHARACTERS:]
