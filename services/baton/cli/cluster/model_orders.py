"""`baton models load`, `unload` and `pin`: changes what a deployment shall serve, and shows how it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from baton.cli.cluster.router_call import CALL_SECONDS, DEFAULT_ROUTER, RouterOption, call_router
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes
from baton.errors import UnavailableError
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import DesiredModel
from baton.internal.v1.model_service_pb2_grpc import ModelServiceStub
from baton.weights.model_name import served_name_of
from baton.wire.model_stages import moved_bytes, progress, stage_name

_POLL_SECONDS = 0.5
_Machines = Annotated[list[str] | None, typer.Option("--machine", help="Machine that serves it; may be repeated.")]
_Excluded = Annotated[list[str] | None, typer.Option("--exclude", help="Machine that never does; may be repeated.")]
_IsPatient = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is so.")]


def load(
    model: Annotated[str, typer.Argument(help="Name of a known model, folder, or org/name\\[@revision].")],
    name: Annotated[str, typer.Option(help="Name to serve it under; default: the hub's, or the folder's.")] = "",
    min_replicas: Annotated[int, typer.Option(min=0, help="Machines that serve it at least.")] = 1,
    max_replicas: Annotated[int, typer.Option(min=0, help="At most; 0: as many as it fits on.")] = 0,
    machines: _Machines = None,
    excluded: _Excluded = None,
    is_on_demand: Annotated[bool, typer.Option("--on-demand", help="Only store it: a request loads it.")] = False,
    keep_alive: Annotated[int, typer.Option(min=0, help="Then, seconds without a request until it goes.")] = 300,
    is_patient: _IsPatient = True,
    router: RouterOption = DEFAULT_ROUTER,
) -> None:
    """Have a model served by the machines that the router chooses."""
    folder = Path(model).expanduser()
    source = str(folder.resolve()) if folder.is_dir() else model if "/" in model else ""
    wanted = DesiredModel(
        name=name or (served_name_of(folder) if folder.is_dir() else model.partition("@")[0]),
        source=source,
        min_replica_count=min_replicas,
        max_replica_count=max_replicas,
        pinned_machines=machines,
        excluded_machines=excluded,
        is_on_demand=is_on_demand,
    )
    wanted.keep_alive.FromSeconds(keep_alive)
    state = _change(router, messages.ChangeModelRequest(load=wanted))
    if is_patient and not is_on_demand:
        state = _await(router, state, messages.MODEL_STAGE_SERVING)
    print(_told(state))


def unload(
    model: Annotated[str, typer.Argument(help="Its name.")],
    is_forgotten: Annotated[bool, typer.Option("--forget", help="Also know its name no more.")] = False,
    is_patient: _IsPatient = True,
    router: RouterOption = DEFAULT_ROUTER,
) -> None:
    """End a model's workers once their requests have ended; its files stay."""
    change = messages.ChangeModelRequest
    state = _change(router, change(forget=model) if is_forgotten else change(unload=model))
    if is_patient:
        _await(router, state, messages.MODEL_STAGE_ABSENT)
    print(f"{model}: {'forgotten' if is_forgotten else 'unloaded'}")


def pin(
    model: Annotated[str, typer.Argument(help="Its name.")],
    machines: _Machines = None,
    excluded: _Excluded = None,
    router: RouterOption = DEFAULT_ROUTER,
) -> None:
    """Say which machines serve a model, or never do; without any, the router chooses."""
    wanted = DesiredModel(name=model, pinned_machines=machines, excluded_machines=excluded)
    print(_told(_change(router, messages.ChangeModelRequest(pin=wanted))))


def listed(router: str) -> messages.ListModelsResponse:
    """Return the models of a deployment; raise BatonError if its router does not answer."""
    answer: messages.ListModelsResponse = call_router(
        router, lambda channel: _stub(channel).ListModels(messages.ListModelsRequest(), timeout=CALL_SECONDS)
    )
    return answer


def print_models(models: Sequence[messages.ModelState]) -> None:
    """Print how models stand, a machine a row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("model", "stage", "machine", "weights", "held", "problem"):
        table.add_column(heading, justify="right" if heading in ("weights", "held") else "left", overflow="fold")
    for state in models:
        count = f"{state.serving_count} node{'' if state.serving_count == 1 else 's'}"
        table.add_row(state.desired.name, stage_name(state.stage), count, "", "", state.problem)
        for machine, each in sorted(state.machines.items()):
            sizes = format_bytes(each.weight_byte_count), format_bytes(each.held_byte_count)
            share = progress(each)
            told = stage_name(each.stage) if share is None else f"{stage_name(each.stage)} {share:.0%}"
            table.add_row("", told, machine, *sizes, each.problem)
    make_console().print(table, markup=False)


def _change(router: str, request: messages.ChangeModelRequest) -> messages.ModelState:
    answer = call_router(router, lambda channel: _stub(channel).ChangeModel(request, timeout=CALL_SECONDS))
    state: messages.ModelState = answer.model
    return state


def _await(router: str, state: messages.ModelState, stage: messages.ModelStage) -> messages.ModelState:
    """Tell a model's states until it serves, or is nowhere; return the last. Raises UnavailableError if it failed."""
    console, told = make_console(), ""
    while not _is_at(state, stage):
        if state.stage == messages.MODEL_STAGE_FAILED and stage == messages.MODEL_STAGE_SERVING:
            raise UnavailableError(f"{state.desired.name} has failed: {state.problem}", reason="MODEL_FAILED")
        if (line := _told(state)) != told:
            told = line
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        time.sleep(_POLL_SECONDS)
        states = {each.desired.name: each for each in listed(router).models}
        state = states.get(state.desired.name, messages.ModelState(desired=state.desired))
    return state


def _is_at(state: messages.ModelState, stage: messages.ModelStage) -> bool:
    if stage == messages.MODEL_STAGE_SERVING:
        return bool(state.stage == stage)
    return not state.serving_count and not any(each.node_id for each in state.machines.values())


def _told(state: messages.ModelState) -> str:
    part = f", {' of '.join(map(format_bytes, moved))}" if (moved := moved_bytes(state)) else ""
    return f"{state.desired.name}: {stage_name(state.stage)}{part}{f' ({state.problem})' if state.problem else ''}"


def _stub(channel: object) -> ModelServiceStub:
    return ModelServiceStub(channel)  # type: ignore[no-untyped-call]
