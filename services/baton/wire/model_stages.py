"""Stages of models (internal model_service.proto) as words, and how far one has come."""

from __future__ import annotations

from typing import Literal, cast

from baton.internal.v1.model_service_pb2 import MachineModel, ModelStage, ModelState

Stage = Literal["absent", "fetching", "stored", "loaded", "serving", "draining", "failed"]
"""Where a model is, from a name that somebody wants to one that answers."""
_MOVING = (ModelStage.MODEL_STAGE_FETCHING, ModelStage.MODEL_STAGE_LOADED)


def stage_name(stage: ModelStage) -> Stage:
    """Return a stage as users read it."""
    return cast(Stage, ModelStage.Name(stage).removeprefix("MODEL_STAGE_").lower())


def progress(model: MachineModel) -> float | None:
    """Return the part of a stage that is done on a machine, 0 to 1; None: nothing is under way."""
    if model.stage not in _MOVING or model.done_byte_count >= model.total_byte_count:
        return None
    return model.done_byte_count / model.total_byte_count


def moved_bytes(state: ModelState) -> tuple[int, int] | None:
    """Return the bytes of a model that its machines have, and all that they will; None: nothing is under way."""
    done = sum(each.done_byte_count for each in state.machines.values())
    total = sum(each.total_byte_count for each in state.machines.values())
    return (done, total) if state.stage in _MOVING and done < total else None
