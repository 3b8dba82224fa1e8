"""A bare machine joins: two agents in two network namespaces, with a shaped link between them.

Run as root: `baton bench two-hosts --model services/baton/demo/checkpoint --out bench/results/two_hosts.json`. The far
agent finds the router by multicast DNS, is refused with a wrong token, joins with the right one, and gets its worker;
the link is measured; a request is computed there by torch and decoded here by MLX; the worker is killed and comes back;
the link is halved, and the plan follows; the far host sleeps (its processes are stopped), wakes, and serves again.
METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.links.deployment import HTTP_PORT, MODEL, ROUTER, Deployment, two_hosts
from bench.links.shaped_link import NEAR_ADDRESS, shaped_link
from bench.results_file import describe_machine, write_results

DEFAULT_BITS_PER_SECOND = 200e6
_PLAN_TOKENS = 1024
_SLEEP_SECONDS = 15.0
"""Longer than its peers take to give up a silent connection, and than an agent takes for a busy moment."""
_RATES = ("memory_read_bytes_per_second", "memory_copy_bytes_per_second")


def main() -> None:
    """Run everything and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model")
    parser.add_argument("--bits-per-second", type=float, default=DEFAULT_BITS_PER_SECOND, help="shape of the link")
    parser.add_argument("--no-profile", action="store_true", help="leave out the two profiles of the machine")
    parser.add_argument("--out", type=Path, help="where to write the results, JSON")
    arguments = parser.parse_args()
    if subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        sys.exit("baton bench two-hosts: needs Linux, root and iproute2")
    results = run(arguments.model.resolve(), arguments.bits_per_second, has_profiles=not arguments.no_profile)
    for line in report(results):
        print(line)
    if arguments.out:
        document = {"bench": "two_hosts", "machine": describe_machine(), **results}
        write_results(arguments.out, document)


def run(model: Path, bits_per_second: float, *, has_profiles: bool) -> dict[str, Any]:
    """Return what was measured.

    Raises:
        RuntimeError: If a command fails, or the wrong token is not refused.
        TimeoutError: If nodes do not register.
    """
    with shaped_link() as link, tempfile.TemporaryDirectory() as folder:
        link.set_rate(bits_per_second)
        with two_hosts(Path(folder), link, model) as deployment:
            profiles = [_profile(deployment, Path(folder)) for _ in range(2 if has_profiles else 0)]
            deployment.start()
            measured = deployment.measured_link(1)
            first_plans = _plans(deployment)
            refused = deployment.join_with("baton1.0" + deployment.token.removeprefix("baton1."))
            answer = _ask()
            link.set_rate(bits_per_second / 2)
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
                "profiles": profiles,
                "plans": [first_plans, _plans(deployment)],
            }


def report(results: Mapping[str, Any]) -> list[str]:
    """Return the results in sentences."""
    shaped, (before, after) = results["shaped_bits_per_second"], results["link_bits_per_second"]
    plans, sleep = results["plans"], results["sleep"]
    transfers = [plan["transfer_seconds"] for plan in plans]
    lines = [
        f"far agent: {results['found_router']}",
        f"wrong token: {results['refusal']}",
        f"link: {before / 1e6:.1f} Mb/s of {shaped / 1e6:.0f} ({before / shaped:.1%}); halved: {after / 1e6:.1f} Mb/s",
        f"request: {results['answer']}",
        f"worker killed: status {results['last_exit_status']}, restarts {results['restarts']}",
        f"far host asleep for {sleep['stopped_seconds']:.1f} s, noticed: {sleep['noticed_seconds']:.1f} s",
        f"request afterwards, by the same worker ({sleep['is_same_worker']}): {sleep['answer']}",
        f"transfer of {_PLAN_TOKENS} tokens: {transfers[0]:.3f} s, over half the link {transfers[1]:.3f} s",
    ]
    for name, ratio in profile_ratios(results["profiles"]).items():
        lines.append(f"profile, second / first: {name} {ratio:.3f}")
    return [*lines, *(line for plan in plans for name in ("table", "nodes") for line in plan[name])]


def profile_ratios(profiles: list[dict[str, Any]]) -> dict[str, float]:
    """Return second / first of the medians of two profiles; nothing without two."""
    if len(profiles) < 2:
        return {}
    first, second = profiles
    ratios = {name: second[name]["median"] / first[name]["median"] for name in _RATES}
    products = first["matmul_flops"]
    return ratios | {
        f"matmul_{dtype}": second["matmul_flops"][dtype]["median"] / products[dtype]["median"] for dtype in products
    }


def _profile(deployment: Deployment, folder: Path) -> dict[str, Any]:
    text = deployment.cli("profile", "--again", "--json", f"--state-dir={folder}/profile", is_far=True)
    return {key: value for key, value in json.loads(text).items() if key != "machine"}


def _plans(deployment: Deployment) -> dict[str, Any]:
    size = (f"--router={ROUTER}", f"--prompt-tokens={_PLAN_TOKENS}", "--max-tokens=16")
    return {
        "transfer_seconds": deployment.transfer_seconds(_PLAN_TOKENS),
        "table": deployment.cli("plan", *size).strip().splitlines(),
        "nodes": deployment.cli("plan", "--nodes", *size).strip().splitlines(),
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


if __name__ == "__main__":
    main()
