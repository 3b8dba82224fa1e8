"""When a first token comes whose prompt's beginning is in the cache of another node, which is busy: copied or computed.

Run as `baton bench prefix-pull --url http://127.0.0.1:8000 --lengths 512,2048 --rounds 3 --out prefix_pull.json`,
against two decode nodes of one place each. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.client.completion import COMPLETIONS_PATH, Answer, Sampling, first_model, stream_answer
from bench.client.http_client import HttpClient, headers_from
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-prefix-pull/1"
OUTPUT_TOKENS = 32
"""So many that a place on the busy node is worth waiting for less than a copy."""
_HOLDER_TOKENS = 256
_REPORT_SECONDS = 1.5
"""Time for the router to hear of the prefix, and of who is busy: nodes report every second."""
_TOKENS = (3, 250)


class Round(NamedTuple):
    """One prefix, asked of the node that lacks it twice."""

    num_tokens: int
    """Tokens of the prefix."""
    first_token_seconds: float
    """Until the first token with the prefix in the other node's cache."""
    computed_first_token_seconds: float
    """The same under another salt, so that nobody has it."""
    pulled_tokens: int
    """Tokens that were copied; 0: the router had them computed."""
    kv_bytes: int
    """Their KV."""
    pull_seconds: float
    """Time for them."""
    is_same_text: bool
    """Whether both outputs are equal."""

    @property
    def times_sooner(self) -> float:
        """Return how many times sooner the token came with the prefix in the other node's cache."""
        return self.computed_first_token_seconds / self.first_token_seconds


async def measure(client: HttpClient, model: str, num_tokens: int, seed: int) -> Round:
    """Return one round: the node that has computed a prefix is busy, and two requests with it follow."""
    random = Random(seed)
    prefix = [random.randrange(*_TOKENS) for _ in range(num_tokens)]
    prompt = [*prefix, *(random.randrange(*_TOKENS) for _ in range(8))]
    async with _holder(client, model, [*prefix, _TOKENS[0]]):
        await asyncio.sleep(_REPORT_SECONDS)
        pulled = await _ask(client, Sampling(model), prompt)
        await asyncio.sleep(_REPORT_SECONDS)
        computed = await _ask(client, Sampling(model, extra={"cache_salt": f"computed-{seed}"}), prompt)
    placement = pulled.placement or {}
    return Round(
        num_tokens,
        pulled.token_seconds[0] - pulled.sent_seconds,
        computed.token_seconds[0] - computed.sent_seconds,
        int(placement.get("pulled_tokens", 0)),
        int(placement.get("kv_bytes", 0)),
        float(placement.get("pull_seconds", 0.0)),
        "".join(pulled.text) == "".join(computed.text),
    )


def table_of(rounds: Sequence[Round]) -> Table:
    """Return a line per length: medians of its rounds."""
    table = Table("prefix tokens", "pulled", "pull ms", "TTFT ms", "computed ms", "times sooner", "same text")
    for num_tokens in dict.fromkeys(each.num_tokens for each in rounds):
        own = [each for each in rounds if each.num_tokens == num_tokens]
        table.add_row(
            str(num_tokens),
            f"{statistics.median(each.pulled_tokens for each in own):.0f}",
            f"{1000 * statistics.median(each.pull_seconds for each in own):.0f}",
            f"{1000 * statistics.median(each.first_token_seconds for each in own):.0f}",
            f"{1000 * statistics.median(each.computed_first_token_seconds for each in own):.0f}",
            f"{statistics.median(each.times_sooner for each in own):.2f}",
            f"{sum(each.is_same_text for each in own)} of {len(own)}",
        )
    return table


@asynccontextmanager
async def _holder(client: HttpClient, model: str, prompt: Sequence[int]) -> AsyncIterator[None]:
    """Keep a node busy that has computed a prompt: its answer is read no further than the first token."""
    body = Sampling(model).body(_HOLDER_TOKENS, prompt=list(prompt))
    async with client.connection() as connection:
        response = await connection.request("POST", COMPLETIONS_PATH, body)
        await anext(response.pieces())
        yield


async def _ask(client: HttpClient, sampling: Sampling, prompt: Sequence[int]) -> Answer:
    answer = Answer()
    body = sampling.body(OUTPUT_TOKENS, prompt=list(prompt))
    await stream_answer(client, COMPLETIONS_PATH, body, time.perf_counter, answer)
    return answer


async def _measure_all(options: argparse.Namespace) -> list[Round]:
    lengths = [int(length) for length in options.lengths.split(",")]
    with closing(HttpClient(options.url, headers_from(None))) as client:
        model = await first_model(client)
        await measure(client, model, min(lengths), -1)  # not counted: connections are made
        return [
            await measure(client, model, length, 1000 * turn + length)
            for turn in range(options.rounds)
            for length in lengths
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="baton bench prefix-pull", description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rounds = asyncio.run(_measure_all(options))
    Console(width=100).print(table_of(rounds))
    if options.out:
        command = f"baton bench prefix-pull --lengths {options.lengths} --rounds {options.rounds}"
        head = {"format": FORMAT, "machine": describe_machine(), "command": command}
        write_results(options.out, head | {"rows": [each._asdict() for each in rounds]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
