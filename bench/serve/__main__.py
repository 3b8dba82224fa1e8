"""Loads an OpenAI-compatible server and measures what its users get: TTFT, TPOT, ITL, end-to-end, throughput, goodput.

Run as `baton bench serve --url http://127.0.0.1:8000 --dataset decode-heavy --arrivals poisson --rate 4 --out
run.json`. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench.client.completion import CHAT_PATH, COMPLETIONS_PATH, Sampling, describe_server, first_model
from bench.client.http_client import HttpClient, HttpError, headers_from
from bench.client.load import LoadSettings, run_load
from bench.client.metrics import ServiceLevel
from bench.results_file import describe_machine
from bench.serve.options import make_arrivals, make_sessions, make_warm_up, parser
from bench.serve.report import Run, table, write_run
from bench.workloads.dataset import Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load, print the table, write the files; 1 if a request failed, 2 if the options are wrong."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        sessions = make_sessions(options)
        arrivals = make_arrivals(options, sessions)
        headers = headers_from(options.api_key_env)
    except (ValueError, OSError) as error:
        command.error(str(error))
    try:
        run = asyncio.run(measure(options, headers, sessions, arrivals))
    except (ValueError, OSError, HttpError) as error:
        print(f"baton bench serve: {options.url}: {error}", file=sys.stderr)
        return 1
    print(f"{run.label}\n{table(run.summary)}")
    for problem, count in Counter(sample.error for sample in run.samples if sample.error).most_common(5):
        print(f"{count} x {problem}", file=sys.stderr)
    if options.out:
        write_run(run, options.out)
    return 1 if run.summary.num_failed else 0


async def measure(
    options: argparse.Namespace, headers: Mapping[str, str], sessions: Sequence[Session], arrivals: Sequence[float]
) -> Run:
    """Return a run of the sessions against the options' server; raise HttpError or OSError if it does not answer."""
    with closing(HttpClient(options.url, headers)) as client:
        settings = _load_settings(options, options.model or await first_model(client))
        server = await describe_server(client)
        await _warm_up(client, make_warm_up(options, sessions), settings)
        machine = describe_machine()
        samples = await run_load(client, sessions, arrivals, settings)
    return Run(
        label=options.label or f"{options.dataset}, {options.arrivals}",
        settings=_recorded(options, settings),
        machine=machine,
        server=server,
        service_level=ServiceLevel(options.slo_ttft, options.slo_tpot, options.slo_e2e),
        samples=tuple(samples),
    )


def _load_settings(options: argparse.Namespace, model: str) -> LoadSettings:
    sampling = Sampling(model, options.temperature, not options.no_ignore_eos, options.extra_body)
    return LoadSettings(
        path=CHAT_PATH if options.chat else COMPLETIONS_PATH,
        sampling=sampling,
        timeout_seconds=options.timeout,
        max_in_flight=options.max_in_flight,
        think_seconds=options.think,
    )


async def _warm_up(client: HttpClient, sessions: Sequence[Session], settings: LoadSettings) -> None:
    """Run sessions of one turn in turn, which opens a connection and wakes the server; raise HttpError if one fails."""
    for session in sessions:
        (sample,) = await run_load(client, [session], [0.0], settings)
        if sample.error:
            raise HttpError(f"the warm-up failed: {sample.error}")


def _recorded(options: argparse.Namespace, settings: LoadSettings) -> dict[str, object]:
    """Return the options as a file keeps them: ranges as [low, high), paths by name, no output files."""
    recorded: dict[str, object] = {}
    for name, value in vars(options).items():
        if isinstance(value, range):
            value = [value.start, value.stop]
        elif isinstance(value, Path):
            value = value.name
        if name not in ("out", "label", "api_key_env"):
            recorded[name] = value
    return recorded | {"model": settings.sampling.model}


if __name__ == "__main__":
    sys.exit(main())
