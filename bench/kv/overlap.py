"""How much of the KV transfer hides behind prefill: one prompt at a time over a link of a given rate.

Run as root: `baton bench overlap --model services/baton/demo/checkpoint --out bench/results/overlap.json`. For
each setting prompts are first computed over a link that is not the bottleneck, to learn the compute time. Then the link
is shaped so that sending takes `ratio` times as long as computing, and `--repeat` other prompts are sent. Definitions:

- compute: from the moment the prefill node begins until it has the first token, seconds;
- transfer: time that the link was busy with frames: per frame, from the later of its readiness at the sender and the
  arrival of the frame before it, until its arrival, seconds;
- exposed: from the end of compute until the last frame arrived, seconds;
- hidden: 1 - exposed / transfer. At ratio 1 and one frame per layer the pipeline leaves one layer exposed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from baton.v1 import decode_service_pb2, generation_pb2, router_service_pb2
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub
from bench.links.shaped_cluster import MODEL, NodePlan, shaped_cluster
from bench.links.shaped_link import ShapedLink, shaped_link
from bench.plots import new_figure
from bench.results_file import describe_machine, write_results

CALL_TIMEOUT_SECONDS = 120.0
_NUM_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Setting:
    """A pair of engines, a prompt, and how it is sent."""

    name: str
    prefill_engine: str
    decode_engine: str
    num_prompt_tokens: int
    layers_per_frame: int
    worker_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt, all times in seconds."""

    first_token_seconds: float
    compute_seconds: float
    transfer_seconds: float
    exposed_seconds: float
    start_seconds: float
    num_bytes: int
    num_frames: int


MOCK_8B = ("--mock-shape", "llama-3.1-8b", "--mock-hardware", "m3-ultra", "--dtype", "bfloat16")
SETTINGS = (
    Setting("mock llama-3.1-8b on m3-ultra", "mock", "mock", 1024, 1, MOCK_8B),
    Setting("mock llama-3.1-8b on m3-ultra, 4 layers a frame", "mock", "mock", 1024, 4, MOCK_8B),
    Setting("torch to mlx, demo model", "torch", "mlx", 2000, 1),
)


def main() -> None:
    """Measure every setting at every ratio, print a table, write the raw samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder (for mock: its tokenizer and vocabulary)"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ratios", default="0.5,0.9,1.0,1.5", help="sending time / computing time")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    columns = ("t_send/t_comp", "link Gb/s", "compute", "transfer", "exposed", "hidden")
    print(f"{'setting':50} " + " ".join(f"{column:>13}" for column in columns))
    with shaped_link() as link:
        for setting in SETTINGS:
            decode = NodePlan(setting.decode_engine, ("--probe-bytes", "0"), measures_links=False)
            prefill = NodePlan(setting.prefill_engine)
            flags = ("--num-blocks", "4096", "--max-step-tokens", "4096", *setting.worker_flags)
            with shaped_cluster(link, options.model, decode, prefill, flags=flags) as cluster:
                for row in measure(link, cluster.decode, cluster.prefill_node_id, setting, options):
                    rows.append(row)
                    print(_table_line(row), flush=True)
    draw_overlap(rows, options.out.with_suffix(".png"))
    write_results(options.out, {"machine": describe_machine(), "argv": sys.argv[1:], "rows": rows})


def measure(
    link: ShapedLink, stub: DecodeServiceStub, prefill_node_id: str, setting: Setting, options: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """Yield one row per ratio: the medians and the raw samples."""
    link.set_rate(40e9)
    generate(stub, prefill_node_id, setting, seed=1)
    quick = [generate(stub, prefill_node_id, setting, seed=seed) for seed in range(2, 5)]
    compute_seconds = statistics.median(sample.compute_seconds for sample in quick)
    for ratio in map(float, options.ratios.split(",")):
        bits_per_second = 8 * quick[0].num_bytes / (ratio * compute_seconds)
        link.set_rate(bits_per_second)
        seeds = range(int(1000 * ratio), int(1000 * ratio) + options.repeat)
        samples = [generate(stub, prefill_node_id, setting, seed=seed) for seed in seeds]
        yield {
            "setting": asdict(setting),
            "ratio": ratio,
            "link_bits_per_second": bits_per_second,
            "compute_seconds": statistics.median(sample.compute_seconds for sample in samples),
            "transfer_seconds": statistics.median(sample.transfer_seconds for sample in samples),
            "exposed_seconds": statistics.median(sample.exposed_seconds for sample in samples),
            "hidden_share": statistics.median(hidden_share(sample) for sample in samples),
            "samples": [asdict(sample) for sample in samples],
        }


def hidden_share(sample: Sample) -> float:
    """Return 1 - exposed / transfer, 0 to 1: the share of the transfer that computation hid."""
    return max(0.0, 1.0 - sample.exposed_seconds / sample.transfer_seconds) if sample.transfer_seconds else 1.0


def generate(stub: DecodeServiceStub, prefill_node_id: str, setting: Setting, *, seed: int) -> Sample:
    """Generate two tokens after a prompt of random tokens that is computed on the prefill node.

    Raises:
        RuntimeError: If the prompt was not computed there after all.
    """
    tokens = random.Random(seed)
    request = decode_service_pb2.DecodeServiceGenerateRequest(
        request_id=f"overlap-{seed}-{time.time_ns()}",
        attempt=1,
        model_id=MODEL,
        prompt_token_ids=[tokens.randrange(3, 90) for _ in range(setting.num_prompt_tokens)],
        sampling=generation_pb2.SamplingParameters(temperature=0, ignore_eos=True, max_token_count=2),
        placement=router_service_pb2.Placement(
            prefill_node_id=prefill_node_id, layers_per_frame=setting.layers_per_frame
        ),
        bypass_prefix_cache=True,
    )
    started = time.perf_counter()
    arrivals = []
    for response in stub.Generate(request, timeout=CALL_TIMEOUT_SECONDS):
        if response.HasField("tokens"):
            arrivals.append(time.perf_counter() - started)
        elif response.HasField("finished"):
            summary = response.finished.summary
    if summary.fallback_reason or not summary.kv_byte_count:
        raise RuntimeError(f"the prompt was not computed remotely: {summary}")
    return Sample(
        first_token_seconds=arrivals[0],
        compute_seconds=_seconds(summary.prefill_duration),
        transfer_seconds=_seconds(summary.transfer_duration),
        exposed_seconds=_seconds(summary.exposed_duration),
        start_seconds=arrivals[-1],
        num_bytes=summary.kv_byte_count,
        num_frames=summary.kv_frame_count,
    )


def _table_line(row: dict[str, object]) -> str:
    setting = row["setting"]
    assert isinstance(setting, dict)
    return (
        f"{setting['name']:50} {row['ratio']:13.2f} {float(str(row['link_bits_per_second'])) / 1e9:13.3f}"
        f" {row['compute_seconds']:13.3f} {row['transfer_seconds']:13.3f} {row['exposed_seconds']:13.3f}"
        f" {row['hidden_share']:13.3f}"
    )


def _seconds(duration: Duration) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def pipeline_hidden_share(ratio: float, num_frames: int) -> float:
    """Return the share of a transfer that a pipeline of equal frames hides, 0 to 1.

    total = t_comp + (N - 1) * max(t_comp, t_send) + t_send, per frame; what exceeds N * t_comp is exposed.

    Args:
        ratio: t_send / t_comp, above 0.
        num_frames: N, 1 or more.
    """
    total = 1 + (num_frames - 1) * max(1.0, ratio) + ratio
    return 1 - (total - num_frames) / (num_frames * ratio)


def draw_overlap(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one line per setting, medians with the range of the samples, and its pipeline dashed."""
    figure = new_figure(8, 5)
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(row["setting"]["name"] for row in rows)):
        _draw_setting(axes, [row for row in rows if row["setting"]["name"] == name], name, f"C{number}")
    axes.set_xlabel("sending time / computing time of a prompt's KV")
    axes.set_ylabel("hidden share of the transfer")
    axes.set_ylim(0, 1.05)
    axes.grid(alpha=0.3)
    axes.legend(title="solid: measured, dashed: N equal frames in a pipeline")
    axes.set_title("How much of the KV transfer hides behind prefill")
    figure.savefig(path)


def _draw_setting(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, color: str) -> None:
    ratios = [row["ratio"] for row in rows]
    medians = [row["hidden_share"] for row in rows]
    below = [median - min(_shares(row)) for median, row in zip(medians, rows, strict=True)]
    above = [max(_shares(row)) - median for median, row in zip(medians, rows, strict=True)]
    axes.errorbar(ratios, medians, yerr=(below, above), color=color, marker="o", capsize=3, label=name)
    num_frames = rows[0]["samples"][0]["num_frames"]
    low, high = min(ratios), max(ratios)
    curve = [low + (high - low) * index / _NUM_CURVE_POINTS for index in range(_NUM_CURVE_POINTS + 1)]
    axes.plot(
        curve, [pipeline_hidden_share(ratio, num_frames) for ratio in curve], color=color, linestyle="--", alpha=0.6
    )


def _shares(row: Mapping[str, Any]) -> list[float]:
    return [
        max(0.0, 1 - sample["exposed_seconds"] / sample["transfer_seconds"]) if sample["transfer_seconds"] else 1.0
        for sample in row["samples"]
    ]


if __name__ == "__main__":
    main()
