"""`baton simulate`: what a node's scheduler and prefix cache would make of a load, without a node."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from baton.capacity.hardware import PRESETS, ComputeTimeModel, StepSpan, step_seconds
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.engine.limits import SchedulerLimits
from baton.engine.scheduling.simulation import SimulatedRequest, Simulation
from baton.engine.scheduling.step import Step
from baton.errors import ConfigurationError
from baton.kv.pool import BlockPool


class LoadLine(BaseModel):
    """A line of a load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arrival_seconds: float = Field(ge=0, allow_inf_nan=False)
    prompt_token_ids: tuple[int, ...] = Field(min_length=1)
    output_token_ids: tuple[int, ...] = Field(min_length=1)
    priority: int = 0


def command(
    load: Annotated[
        Path, typer.Argument(help="JSON lines: arrival_seconds, prompt_token_ids, output_token_ids; priority if not 0.")
    ],
    shape: Annotated[str, typer.Option(help=" | ".join(REFERENCE_MODELS))] = "llama-3.1-8b",
    hardware: Annotated[str, typer.Option(help=" | ".join(PRESETS))] = "a100",
    time_model: Annotated[str, typer.Option(help="roofline | note: what a pass takes.")] = "roofline",
    weight_bytes: Annotated[int, typer.Option(min=0, help="Bytes read by a pass; 0: those of the shape.")] = 0,
    num_blocks: Annotated[int, typer.Option(min=1, help="KV blocks of the node.")] = 4096,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 16,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Sequences that hold blocks at once.")] = 64,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Positions computed in one pass.")] = 512,
    target_tpot_ms: Annotated[float, typer.Option(min=0, help="As the setting of a node.")] = 0.0,
    prefix_cache: Annotated[bool, typer.Option(help="Use the prefix cache.")] = True,
) -> None:
    """Run a load through the engine's own scheduler and prefix cache in virtual time.

    Prints a line of JSON for each request, in the order given: cached_token_count, admitted_seconds,
    first_token_seconds, finished_seconds, preemption_count.
    """
    simulation = Simulation(
        list(read_load(load)),
        BlockPool(num_blocks, block_tokens),
        SchedulerLimits(max_batch_size, max_step_tokens, target_tpot_seconds=target_tpot_ms / 1000),
        step_timer(shape, hardware, time_model, weight_bytes),
        has_prefix_cache=prefix_cache,
    )
    for outcome in simulation.run():
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


def read_load(path: Path) -> Iterator[SimulatedRequest]:
    """Yield the requests of a file.

    Raises:
        ConfigurationError: If it cannot be read or a line is none; file, line and field are named.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            yield from _parse(lines, path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"LOAD: cannot read {path}: {error}") from error


def step_timer(shape_name: str, hardware_name: str, time_model: str, weight_bytes: int) -> Callable[[Step], float]:
    """Return what a pass takes.

    Raises:
        ConfigurationError: If a name is unknown; the message lists the known ones.
    """
    model = _known(time_model, "--time-model", ("roofline", "note"))
    shape = REFERENCE_MODELS[_known(shape_name, "--shape", REFERENCE_MODELS)]
    hardware = PRESETS[_known(hardware_name, "--hardware", PRESETS)]
    if weight_bytes:
        shape = replace(shape, weight_bytes=weight_bytes)
    kind: ComputeTimeModel = "note" if model == "note" else "roofline"
    return lambda step: step_seconds(
        kind, hardware, shape, [StepSpan(span.end, len(span.token_ids)) for span in step.spans]
    )


def _parse(lines: Iterable[str], file_name: str) -> Iterator[SimulatedRequest]:
    for number, line in enumerate(lines, start=1):
        try:
            parsed = LoadLine.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "line"
            raise ConfigurationError(f"LOAD: {file_name}:{number}: {field}: {first['msg']}") from error
        yield SimulatedRequest(
            parsed.arrival_seconds, parsed.prompt_token_ids, parsed.output_token_ids, parsed.priority
        )


def _known(name: str, flag: str, known: Iterable[str]) -> str:
    if name not in known:
        raise ConfigurationError(f"flag {flag}: expected one of {', '.join(known)}, got {name}")
    return name
