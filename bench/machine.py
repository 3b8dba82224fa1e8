"""Where and from what a result came: the client's machine, the commit, and what the server says of itself."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bench.client.http_client import HttpClient, HttpError

_ROOT = Path(__file__).resolve().parent.parent


def describe_machine() -> dict[str, object]:
    """Return the client's machine and the commit of this checkout; no name and no path of the machine."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "is_modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }


async def describe_server(client: HttpClient) -> dict[str, object]:
    """Return the server's models and version, as far as it tells."""
    described: dict[str, object] = {}
    for name, path in (("models", "/v1/models"), ("version", "/version")):
        try:
            described[name] = json.loads(await client.get_json_text(path))
        except (HttpError, OSError, ValueError) as error:
            described[name] = f"unknown: {error}"
    return described


async def first_model(client: HttpClient) -> str:
    """Return the id of the first model that the server has.

    Raises:
        HttpError: If it cannot be asked.
        ValueError: If it has none.
    """
    models = json.loads(await client.get_json_text("/v1/models"))["data"]
    if not models:
        raise ValueError("the server has no model")
    return str(models[0]["id"])


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
