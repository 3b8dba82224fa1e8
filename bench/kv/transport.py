"""What carries KV frames fastest: Baton's transports beside a raw socket, over loopback.

Run: `baton bench kv-transport --out bench/results/kv_transport.json`. Every contender is two processes of its own, a
sender and a receiver; contenders take turns, round after round, so that what the machine does besides meets all alike.
METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.processes import Child, ChildFailedError, running_child
from bench.results_file import describe_machine, write_results

_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""What `baton up` and the images set for every worker; all contenders get it."""
RAW = "raw TCP"
"""The contender that others are compared with."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to move frames: the command whose last words are `send`, or `receive HOST:PORT` and options."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One transfer."""

    gigabytes_per_second: float
    """Payload, 1e9 bytes, by the receiver's clock."""
    send_cpu_seconds: float
    """CPU of the sending process, all threads, user and kernel, per GB."""
    receive_cpu_seconds: float
    """The same of the receiving process."""


def main() -> None:
    """Measure, print the table, write the samples."""
    options = _options()
    contenders = list(_contenders())
    samples: dict[str, list[Sample]] = {}
    failures: dict[str, str] = {}
    for round_number in range(options.rounds):
        for contender in contenders:
            if contender.name in failures:
                continue
            try:
                sample = measure(contender, options.num_frames, options.frame_bytes)
            except ChildFailedError as error:
                failures[contender.name] = str(error)
                print(f"{contender.name}: {error}", file=sys.stderr)
                continue
            samples.setdefault(contender.name, []).append(sample)
            print(f"round {round_number + 1} {contender.name}: {sample.gigabytes_per_second:.2f} GB/s", file=sys.stderr)
    rows = [row_of(name, samples) for name in samples]
    print("\n".join(table_lines(rows)))
    if options.out:
        document = {
            "machine": describe_machine(),
            "settings": {key: value for key, value in vars(options).items() if key != "out"},
            "rows": rows,
            "failures": failures,
        }
        write_results(options.out, document)


def measure(contender: Contender, num_frames: int, frame_bytes: int) -> Sample:
    """Return what one transfer took, between two processes that are started for it.

    Raises:
        ChildFailedError: If a process fails, or what landed is not what was sent.
    """
    with _running((*contender.command, "send", *contender.options)) as sender:
        port = sender.answer()["port"]
        sizes = ("--num-frames", str(num_frames), "--frame-bytes", str(frame_bytes))
        command = (*contender.command, "receive", f"127.0.0.1:{port}", *contender.options, *sizes)
        with _running(command) as receiver:
            receiver.answer()
            sender.tell("go")
            cpu_before = sender.answer()["cpu_seconds"]
            receiver.tell("go")
            result = receiver.answer()
            sender.tell("go")
            cpu_after = sender.answer()["cpu_seconds"]
    if not result["is_right"]:
        raise ChildFailedError("what landed is not what was sent")
    gigabytes = result["num_bytes"] / 1e9
    return Sample(
        gigabytes / result["seconds"], (cpu_after - cpu_before) / gigabytes, result["cpu_seconds"] / gigabytes
    )


def row_of(name: str, samples: Mapping[str, Sequence[Sample]]) -> dict[str, object]:
    """Return medians and samples of a contender, and its ratios to the raw socket, round by round."""
    own, raw = samples[name], samples[RAW]
    pairs = list(zip(own, raw, strict=False))
    return {
        "name": name,
        **{name: statistics.median(getattr(sample, name) for sample in own) for name in Sample.__slots__},
        "rate_ratio": statistics.median(a.gigabytes_per_second / b.gigabytes_per_second for a, b in pairs),
        "cpu_ratio": statistics.median(_cpu(a) / _cpu(b) for a, b in pairs),
        "samples": [asdict(sample) for sample in own],
    }


def table_lines(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield the table in Markdown: medians, and ratios to the raw socket of the same round."""
    yield "| transport | GB/s | CPU s/GB, sender + receiver | GB/s against raw TCP | CPU against raw TCP |"
    yield "|---|---|---|---|---|"
    for row in rows:
        rate, send, receive = (row[key] for key in ("gigabytes_per_second", "send_cpu_seconds", "receive_cpu_seconds"))
        yield (
            f"| {row['name']} | {rate:.2f} | {send:.2f} + {receive:.2f} "
            f"| {row['rate_ratio']:.2f} | {row['cpu_ratio']:.2f} |"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-frames", type=int, default=2048, help="frames of a transfer; 256 fill the memory once")
    parser.add_argument("--frame-bytes", type=int, default=1 << 20, help="payload of a frame; divides 64 MiB")
    parser.add_argument("--out", type=Path, help="JSON with all samples")
    return parser.parse_args()


def _contenders() -> Iterator[Contender]:
    link = (sys.executable, "-m", "baton.cli", "kv-link")
    yield Contender(RAW, (sys.executable, "-m", "bench.kv.raw_tcp"))
    yield Contender("Baton, fast path", link, ("--path", "fast"))
    yield Contender("Baton, fast path as in nodes (CRC-32C)", link, ("--path", "fast-checked"))
    yield Contender("Baton, shared memory as in nodes (CRC-32C)", link, ("--path", "shared"))
    yield Contender("Baton, grpcio path", link, ("--path", "grpc"))


def _running(command: Sequence[str]) -> AbstractContextManager[Child]:
    return running_child(command, {**_MALLOC, **os.environ}, is_quiet=True)


def _cpu(sample: Sample) -> float:
    return sample.send_cpu_seconds + sample.receive_cpu_seconds


if __name__ == "__main__":
    main()
