"""The way of a chat request through the files of Baton, from the socket to the tokens: what a newcomer has to read."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import baton
from baton.demo import checkpoint_dir
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import CHAT_PATH

_PROFILE = Path(__file__).parent / "call_profile"
_PACKAGE = f"{Path(baton.__file__).parent}/"
_NUM_REQUESTS = 20
_SETTINGS = {
    "gateway": {"node_poll_seconds": "2"},
    "router": {"prefill_policy": "remote", "report_interval_seconds": "2"},
}
"""Spares calls that are not of a request."""
_IDLE_SECONDS = 3.0
"""For which the calls of a cluster without requests are counted, which those beside requests are told from."""
_MIN_SHARE = 0.75
"""Of requests in which a function is called, beside its calls in as long a time without."""
_MAX_FILES = 119
"""Files in which a function is called for each request, generated ones aside. Below, a request is easier to follow."""


class Profiled(NamedTuple):
    """A cluster whose processes count their calls, and the folder in which they write them down."""

    cluster: Cluster
    folder: Path

    def set_flag(self, value: int) -> None:
        """Begin to count calls of requests (1) or those of an idle cluster (3), or have both written (2)."""
        with (self.folder / "flag").open("r+b") as flag:  # in place: the processes have mapped it
            flag.write(bytes([value]))

    def files_by_role(self, idle_factor: float) -> Mapping[str, Mapping[str, int]]:
        """Return the files that each role's requests enter, and the number of their functions that they call.

        `idle_factor`: the seconds of requests by those without.
        """
        files: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for path in self.folder.glob("*.json"):
            written = json.loads(path.read_text())
            for file, _, number, idle_number in written["calls"]:
                is_of_requests = number - idle_number * idle_factor >= _NUM_REQUESTS * _MIN_SHARE
                if is_of_requests and file.startswith(_PACKAGE) and "/v1/" not in file:
                    role = written["arguments"][written["arguments"].index("serve") + 1]
                    files[role][file.removeprefix(_PACKAGE)] += 1
        return files


@pytest.fixture
def profiled(tmp_path: Path) -> Iterator[Profiled]:
    """Return a cluster of one node of each kind, on which every prompt is computed by the prefill node."""
    (tmp_path / "flag").write_bytes(b"\0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_CALL_PROFILE", str(tmp_path))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_PROFILE), os.environ.get("PYTHONPATH")])))
        with Cluster(checkpoint_dir(), settings=_SETTINGS) as cluster:
            yield Profiled(cluster, tmp_path)


def test_a_chat_request_enters_few_files(profiled: Profiled) -> None:
    """Twenty streamed requests with unlike prompts: how many files are entered by each of them."""
    for number in range(3):
        _chat(profiled.cluster, f"warm {number}")
    profiled.set_flag(1)
    started_seconds = time.monotonic()
    for number in range(_NUM_REQUESTS):
        assert _chat(profiled.cluster, f"{number} What is {number} + 30? " + f"planet {number} " * 60)["prefill_node"]
    request_seconds = time.monotonic() - started_seconds
    profiled.set_flag(3)
    time.sleep(_IDLE_SECONDS)
    profiled.set_flag(2)
    num_processes = len(profiled.cluster.processes)
    profiled.cluster.wait_until(lambda: len([*profiled.folder.glob("*.json")]) >= num_processes, "calls are written")

    files = profiled.files_by_role(request_seconds / _IDLE_SECONDS)
    entered = {file for each in files.values() for file in each}
    print(f"{len(entered)} files; " + ", ".join(f"{role} {len(each)}" for role, each in sorted(files.items())))
    assert files.keys() == {"gateway", "router", "cache-index", "prefill", "decode"}
    assert len(entered) <= _MAX_FILES, sorted(entered)


def _chat(cluster: Cluster, text: str) -> Mapping[str, object]:
    """Return what the gateway says of a request's way, after its last token."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    host, port = cluster.http_address
    url, headers = f"http://{host}:{port}{CHAT_PATH}", {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        (summary,) = (line for line in answer.read().decode().splitlines() if '"baton"' in line)
    return dict(json.loads(summary.removeprefix("data: "))["baton"])
