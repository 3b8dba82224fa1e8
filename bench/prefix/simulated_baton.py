"""Runs a load on Baton's own scheduler and block cache, in virtual time, by the command `baton simulate`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.prefix.conversations import Request
from bench.prefix.mock_engine import Outcome
from bench.prefix.pass_timing import WEIGHT_BYTES

BLOCK_TOKENS = 16
MAX_STEP_TOKENS = 512


class BatonFailedError(RuntimeError):
    """`baton simulate` ended with an error; the message is its own."""


class BatonLoad:
    """A load in a file, for several runs; `close` removes it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-prefix-")
        self._path = Path(self._folder.name) / "load.jsonl"
        with self._path.open("w", encoding="utf-8") as lines:
            for request in requests:
                fields = asdict(request)
                line = {
                    "arrival_seconds": fields["arrival_seconds"],
                    "prompt_token_ids": fields["prompt"],
                    "output_token_ids": fields["output"],
                }
                lines.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def run(self, timing_name: str, *, batch_size: int, memory_tokens: int, has_prefix_cache: bool) -> list[Outcome]:
        """Return the outcome of each request on a Llama-65B on an A100 with room for so many tokens.

        Raises:
            BatonFailedError: If the command fails.
        """
        num_blocks = -(-memory_tokens // BLOCK_TOKENS) + batch_size  # each sequence's last block is not full
        command = [
            *(sys.executable, "-m", "baton.cli", "simulate", str(self._path)),
            *("--shape", "llama-65b", "--hardware", "a100", "--weight-bytes", str(int(WEIGHT_BYTES))),
            *("--time-model", timing_name, "--num-blocks", str(num_blocks), "--block-tokens", str(BLOCK_TOKENS)),
            *("--max-batch-size", str(batch_size), "--max-step-tokens", str(MAX_STEP_TOKENS)),
            "--prefix-cache" if has_prefix_cache else "--no-prefix-cache",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BatonFailedError(done.stderr.strip() or f"baton simulate ended with status {done.returncode}")
        rows = map(json.loads, done.stdout.splitlines())
        return [Outcome(row["cached_token_count"], row["first_token_seconds"], row["finished_seconds"]) for row in rows]
