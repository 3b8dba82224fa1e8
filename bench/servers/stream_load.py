"""Loads a server with streams by `stream_load.c`, compiled here: its own CPU time is small beside what it measures."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.local_cluster import MODEL
from bench.processes import answers_of
from bench.workloads.vocabulary import WORDS

_SOURCE = Path(__file__).with_suffix(".c")
_BIN_SECONDS = 50e-6


@dataclass(frozen=True, slots=True)
class Load:
    """Connections that send requests one after the other."""

    num_streams: int
    """Connections."""
    num_requests: int
    """Requests of each."""
    num_tokens: int
    """Output tokens of each request."""
    ramp_seconds: float
    """Time over which the connections begin, evenly, so that their requests do not come at once."""

    @property
    def num_all_requests(self) -> int:
        """Requests of all connections."""
        return self.num_streams * self.num_requests

    @property
    def num_all_tokens(self) -> int:
        """Output tokens of all requests."""
        return self.num_all_requests * self.num_tokens


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a load saw."""

    seconds: float
    """From the first connection's begin to the last answer's end."""
    num_failed: int
    """Requests without a complete answer."""
    num_events: int
    """Events with output."""
    own_cpu_seconds: float
    """CPU time of the load generator."""
    ttft_seconds: list[float]
    """Per request, from the moment before it was sent to the read that brought its first event with output."""
    itl_bins: Mapping[int, int]
    """Gaps between such reads, by number of whole 50 microseconds; from 1 s on in one bin."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Latencies:
        """Return what `stream_load` or `bench.servers.direct_load` has printed."""
        return cls(
            seconds=value["seconds"],
            num_failed=value["num_failed"],
            num_events=value["num_events"],
            own_cpu_seconds=value["own_cpu_seconds"],
            ttft_seconds=[microseconds / 1e6 for microseconds in value["ttft_us"]],
            itl_bins={int(bin_index): count for bin_index, count in value["itl_bins_50us"].items()},
        )

    def itl_seconds(self, share: float) -> float:
        """Return the middle of the bin that holds a quantile of all gaps; 0 without gaps."""
        remaining = share * sum(self.itl_bins.values())
        for bin_index, count in sorted(self.itl_bins.items()):
            remaining -= count
            if remaining <= 0:
                return (bin_index + 0.5) * _BIN_SECONDS
        return 0.0


def compile_load(directory: Path) -> Path:
    """Compile the load generator; return the program.

    Raises:
        FileNotFoundError: If there is no C compiler.
        subprocess.CalledProcessError: If it does not compile.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("a C compiler is needed: cc, gcc or clang")
    program = directory / "stream_load"
    subprocess.run([compiler, "-O2", "-o", str(program), str(_SOURCE)], check=True)
    return program


def write_body(directory: Path, *, num_prompt_words: int, num_tokens: int) -> Path:
    """Write the body of all requests; return its file. Their prompts differ from the first word on."""
    words = (WORDS * (num_prompt_words // len(WORDS) + 1))[:num_prompt_words]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": " ".join(["########", *words])}],
        "stream": True,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    path = directory / f"body-{num_tokens}.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


def run_load(program: Path, http_port: int, body: Path, load: Load) -> Latencies:
    """Run a load against POST /v1/chat/completions of 127.0.0.1.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    ramp_microseconds = int(load.ramp_seconds * 1e6)
    numbers = (http_port, "/v1/chat/completions", body, load.num_streams, load.num_requests, ramp_microseconds)
    command = [str(program), *map(str, numbers)]
    (answer,) = answers_of(command)
    return Latencies.of(answer)
