"""Whole servers, HTTP to HTTP: Baton beside `transformers serve --continuous-batching` and `mlx_lm.server`.

Run: `baton bench full-stack --serve-python serving/bin/python --out bench/results/full_stack.json`. Every server has
the same model in float32 and one thread; they run one after the other, round after round, each with 64 requests at
once. The rival of torch needs a Python that has `transformers[serving]` and accelerate. METHODOLOGY.md
(`baton bench serve`) defines the numbers; they are of this client.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import ONE_THREAD, chat_request, free_port, running_server, wait_until_served
from bench.results_file import describe_machine, write_results
from bench.servers.stack_model import write_stack_model

_SERVE = "from transformers.cli.transformers import main; main()"
_MODEL = "model"
SHAPES = {
    "prefill-heavy": ("--dataset", "prefill-heavy"),
    "decode-heavy": ("--dataset", "decode-heavy"),
    "sharegpt-like": ("--dataset", "random", "--prompt-tokens", "20:385", "--output-tokens", "20:339"),
}
"""Options of `baton bench serve` by name: 462/16, 462/256, and lengths around ShareGPT's means of 202 and 179."""


@dataclass(frozen=True, slots=True)
class Server:
    """A program that serves the model."""

    name: str
    command: tuple[str, ...]
    model: str
    """Name that requests ask for."""
    preload: str = ""
    """Library that the loader adds."""


def main() -> None:
    """Measure every server with every shape, print a table, draw, and write the summaries."""
    options = _parser().parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_stack_model(folder / _MODEL)
        port = free_port()
        print(
            f"{'shape':15} {'server':22} {'tok/s':>8} {'TTFT p50':>9} {'p99':>8} {'TPOT p50':>9} {'p99':>8}", flush=True
        )
        for number in range(options.repeat):
            for server in _servers(folder, port, options):
                with _running(server, port, folder):
                    for shape in SHAPES:
                        summary = _ask(server, shape, port, folder, number, options.count)
                        rows.append({"shape": shape, "server": server.name, "round": number, **summary})
                        print(_line(rows[-1]), flush=True)
    if options.out:
        medians = _medians(rows)
        machine = {**describe_machine(), "requests": options.count, "rounds": options.repeat}
        write_results(options.out, {"machine": machine, "medians": medians, "rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve-python", type=Path, help="python that can run `transformers serve`")
    parser.add_argument("--blas", default="", help="BLAS library that processes with MLX preload")
    parser.add_argument("--count", type=int, default=64, help="requests at once")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--servers", nargs="+", help="names of some of the servers only")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser


def _servers(folder: Path, port: int, options: argparse.Namespace) -> Iterator[Server]:
    model = str(folder / _MODEL)
    ports = ("--http-port", str(port), "--grpc-port", str(free_port()))
    baton = (sys.executable, "-m", "baton.cli", "up", "--model", model, *ports)
    servers = []
    for engine in ("torch", "mlx"):
        nodes = folder / f"{engine}.toml"
        nodes.write_text(f'[[node]]\nrole = "decode"\nengine = "{engine}"\nnum_threads = 1\nmax_batch_size = 64\n')
        preload = options.blas if engine == "mlx" else ""
        servers.append(Server(f"baton, {engine}", (*baton, "--nodes", str(nodes)), _MODEL, preload))
    if options.serve_python:
        serve = (str(options.serve_python), "-c", _SERVE, "serve", model, "--continuous-batching", "--device", "cpu")
        cache = [
            "--dtype",
            "float32",
            "--cb-num-blocks",
            "2048",
            "--cb-block-size",
            "32",
            "--cb-max-batch-tokens",
            "512",
        ]
        servers.append(Server("transformers serve", (*serve, *cache, "--port", str(port)), model))
    mlx = (sys.executable, "-m", "mlx_lm", "server", "--model", model, "--port", str(port), "--temp", "0")
    batch = ("--decode-concurrency", "64", "--prompt-concurrency", "8")
    servers.append(Server("mlx_lm.server", (*mlx, *batch), model, options.blas))
    yield from (server for server in servers if not options.servers or server.name in options.servers)


@contextmanager
def _running(server: Server, port: int, folder: Path) -> Iterator[None]:
    """Run a server; it has answered a request once the context begins."""
    environment = {**ONE_THREAD, **({"LD_PRELOAD": server.preload} if server.preload else {})}
    log = folder / "server.log"
    with running_server(server.command, log, environment) as process:
        wait_until_served(process, chat_request(f"http://127.0.0.1:{port}", server.model), log, server.name)
        yield


def _ask(server: Server, shape: str, port: int, folder: Path, seed: int, count: int) -> Mapping[str, Any]:
    out = folder / "run.json"
    command = (
        *(sys.executable, "-m", "baton.cli", "bench", "serve"),
        *("--url", f"http://127.0.0.1:{port}", "--model", server.model, "--chat"),
    )
    settings = ("--count", str(count), "--seed", str(seed + 1), "--no-ignore-eos", "--quiet", "--out", str(out))
    done = subprocess.run((*command, *settings, *SHAPES[shape]), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{server.name}, {shape}: {done.stderr[-1000:] or done.stdout[-1000:]}")
    summary: Mapping[str, Any] = json.loads(out.read_text())["summary"]
    if summary["num_failed"]:
        raise RuntimeError(f"{server.name}, {shape}: {summary['num_failed']} of {count} requests failed")
    times = {
        f"{name}_{share}": summary[f"{name}_seconds"][share] for name in ("ttft", "tpot") for share in ("p50", "p99")
    }
    return {"output_tokens_per_second": summary["output_tokens_per_second"], **times}


def _medians(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    keys = list(dict.fromkeys((row["shape"], row["server"]) for row in rows))
    numbers = ("output_tokens_per_second", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
    medians = []
    for shape, server in keys:
        chosen = [row for row in rows if (row["shape"], row["server"]) == (shape, server)]
        values = {name: statistics.median(row[name] for row in chosen) for name in numbers}
        medians.append({"shape": shape, "server": server, **values})
    return medians


def _line(row: Mapping[str, Any]) -> str:
    times = " ".join(
        f"{1e3 * row[name]:{width}.1f}"
        for name, width in zip(("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"), (9, 8, 9, 8), strict=True)
    )
    return f"{row['shape']:15} {row['server']:22} {row['output_tokens_per_second']:8.1f} {times}"


if __name__ == "__main__":
    main()
