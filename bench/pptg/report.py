"""Results of `baton bench pptg`: exo-bench's file (`runs`, `cluster`) and batches; a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.pptg.batch import Batch, BatchRequest
from bench.results_file import write_results

FORMAT = "baton-bench-pptg/1"
_COLUMNS = (
    "pp",
    "tg",
    "N",
    "prompt tok/s",
    "gen tok/s",
    "exo max x N",
    "true output",
    "true total",
    "wall s",
)
_AGGREGATES = """\
exo max x N: the fastest stream's rate times N, as if all N decoded at that rate and prefill took no time.
true output, true total: all tokens of the batch by its wall time, prefill and stagger included."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a batch asks: prompt tokens, output tokens, requests at once."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One measured batch."""

    setting: Setting
    repeat_index: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """Medians over all requests (rates of one) and over all batches (aggregates) of a setting, tokens per second."""

    setting: Setting
    prompt_tps: float
    generation_tps: float
    exo_aggregate_tps: float
    batch_output_tps: float
    batch_total_tps: float
    batch_wall_seconds: float


def summarize_settings(runs: Iterable[BatchRun]) -> list[SettingSummary]:
    """Return a summary per setting, in the order in which they were measured."""
    by_setting: dict[Setting, list[BatchRun]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    return [_summary(setting, of_setting) for setting, of_setting in by_setting.items()]


def table(runs: Iterable[BatchRun]) -> str:
    """Return the summaries as text, with what tells the two aggregates apart."""
    lines = ["  ".join(f"{column:>12}" for column in _COLUMNS)]
    for row in summarize_settings(runs):
        numbers: Sequence[float] = (
            row.prompt_tps,
            row.generation_tps,
            row.exo_aggregate_tps,
            row.batch_output_tps,
            row.batch_total_tps,
        )
        lengths = (row.setting.prompt_tokens, row.setting.output_tokens, row.setting.concurrency)
        cells = [*(f"{length:>12}" for length in lengths), *(f"{number:>12.1f}" for number in numbers)]
        lines.append("  ".join([*cells, f"{row.batch_wall_seconds:>12.3f}"]))
    return "\n".join([*lines, _AGGREGATES])


def write_result(path: Path, runs: Sequence[BatchRun], head: Mapping[str, Any], cluster: object) -> None:
    """Write everything as JSON.

    Args:
        path: File to write.
        runs: Measured batches.
        head: Settings, machine and server.
        cluster: The server's `/state` at the time, None where it has none.
    """
    document = {
        "format": FORMAT,
        **head,
        "summary": [asdict(summary) for summary in summarize_settings(runs)],
        "batches": [_batch_row(run) for run in runs],
        "runs": [row for run in runs for row in _request_rows(run)],
        "cluster": cluster,
    }
    write_results(path, document)


def _summary(setting: Setting, runs: Sequence[BatchRun]) -> SettingSummary:
    batches = [run.batch for run in runs]
    stats = [request.stats for batch in batches for request in batch.requests]
    return SettingSummary(
        setting=setting,
        prompt_tps=median(one.prompt_tps for one in stats),
        generation_tps=median(one.generation_tps for one in stats),
        exo_aggregate_tps=median(batch.exo_aggregate_tps for batch in batches),
        batch_output_tps=median(batch.output_tps for batch in batches),
        batch_total_tps=median(batch.total_tps for batch in batches),
        batch_wall_seconds=median(batch.wall_seconds for batch in batches),
    )


def _batch_row(run: BatchRun) -> dict[str, object]:
    return {
        **_setting_row(run),
        "start_s": run.batch.start_seconds,
        "wall_s": run.batch.wall_seconds,
        "exo_aggregate_tps": run.batch.exo_aggregate_tps,
        "batch_output_tps": run.batch.output_tps,
        "batch_total_tps": run.batch.total_tps,
    }


def _request_rows(run: BatchRun) -> list[dict[str, object]]:
    """Return rows with the names that exo-bench's files have, so that its readers can read them."""
    return [
        {**_setting_row(run), "concurrent_index": index, **_request_row(request)}
        for index, request in enumerate(run.batch.requests)
    ]


def _request_row(request: BatchRequest) -> dict[str, object]:
    stats = request.stats
    power = {} if request.power is None else {"power_usage": dict(request.power)}
    return {
        "elapsed_s": request.elapsed_seconds,
        "ttft_s": request.ttft_seconds,
        "cached_tokens": request.num_cached_tokens,
        "completion_tokens": request.num_completion_tokens,
        "output_text_preview": request.preview,
        "stats_source": stats.source,
        "stats": {
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
            "peak_memory_usage": {"inBytes": stats.peak_memory_bytes},
            "prefix_cache_hit": stats.prefix_cache_hit,
        },
        **power,
    }


def _setting_row(run: BatchRun) -> dict[str, object]:
    return {
        "pp_tokens": run.setting.prompt_tokens,
        "tg": run.setting.output_tokens,
        "concurrency": run.setting.concurrency,
        "repeat_index": run.repeat_index,
    }
