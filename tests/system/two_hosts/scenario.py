"""A bare machine joins: two agents in two network namespaces, with a shaped link between them; needs root.

The far agent finds the router by multicast DNS, is refused with a wrong token, joins with the right one, and gets its
worker; the link is measured; a request is computed there by torch and decoded here by MLX; the worker is killed and
comes back; the link is halved, and the plan follows; the far host sleeps (its processes are stopped), wakes, and serves
again.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from bench.links.network import NEAR_ADDRESS, network_of
from system.two_hosts.deployment import HTTP_PORT, MODEL, ROUTER, Deployment, two_hosts

DEFAULT_BITS_PER_SECOND = 200e6
_PLAN_TOKENS = 1024
_SLEEP_SECONDS = 15.0
"""Longer than its peers take to give up a silent connection, and than an agent takes for a busy moment."""


def run(model: Path, bits_per_second: float) -> dict[str, Any]:
    """Return what was measured.

    Raises:
        RuntimeError: If a command fails, or the wrong token is not refused.
        TimeoutError: If nodes do not register.
    """
    with network_of() as network, tempfile.TemporaryDirectory() as folder:
        network.set_rate(1, bits_per_second)
        with two_hosts(Path(folder), network, model) as deployment:
            deployment.start()
            measured = deployment.measured_link(1)
            first_plans = _plans(deployment)
            refused = deployment.join_with("baton1.0" + deployment.token.removeprefix("baton1."))
            answer = _ask()
            network.set_rate(1, bits_per_second / 2)
            killed = deployment.kill_far_worker()
            measured_again = deployment.measured_link(2)
            status = deployment.far_status()
            slept = deployment.sleep_far(_SLEEP_SECONDS)
            return {
                "shaped_bits_per_second": bits_per_second,
                "link_bits_per_second": [8 * each.bytes_per_second for each in (measured, measured_again)],
                "refusal": refused.strip().splitlines()[-1],
                "found_router": _joined_line(deployment.log_of("far-1")),
                "answer": answer,
                "is_new_process": status.worker_process_id not in (0, killed),
                "restarts": status.restart_count,
                "last_exit_status": status.last_exit_status,
                "sleep": {
                    "stopped_seconds": slept.stopped_seconds,
                    "noticed_seconds": slept.status.last_sleep.ToMicroseconds() / 1e6,
                    "is_same_worker": slept.status.worker_process_id == status.worker_process_id,
                    "answer": _ask(),
                },
                "plans": [first_plans, _plans(deployment)],
            }


def _plans(deployment: Deployment) -> dict[str, Any]:
    size = (f"--router={ROUTER}", f"--prompt-tokens={_PLAN_TOKENS}", "--max-tokens=16")
    return {
        "transfer_seconds": deployment.transfer_seconds(_PLAN_TOKENS),
        "table": deployment.cli("plan", *size).strip().splitlines(),
    }


def _joined_line(log: str) -> str:
    """Return what an agent logged when it had joined."""
    line = next(line for line in log.splitlines() if " joined router=" in line)
    return line[line.index("joined") :]


def _ask() -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0}
    request = urllib.request.Request(
        f"http://{NEAR_ADDRESS}:{HTTP_PORT}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        document = json.load(response)
    happened = document["baton"]
    kept = ("prefill_node", "decode_node", "kv_bytes", "kv_transport", "fallback_reason")
    return {"content": document["choices"][0]["message"]["content"], **{name: happened[name] for name in kept}}
