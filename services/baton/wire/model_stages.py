"""Stages of models (internal model_service.proto) as words, and how far one has come."""

from __future__ import annotations

from typing import Literal, cast

from baton.internal.v1.model_service_pb2 import MachineModel, ModelStage

Stage = Literal["absent", "fetching", "stored", "loaded", "serving", "draining", "failed"]
"""Where a model is, from a name that somebody wants to one that answers."""
MOVING = (ModelStage.MODEL_STAGE_FETCHING, ModelStage.MODEL_STAGE_LOADED)
"""Stages in which bytes are counted."""


def stage_name(stage: ModelStage) -> Stage:
    """Return a stage as users read it."""
    return cast(Stage, ModelStage.Name(stage).removeprefix("MODEL_STAGE_").lower())


def progress(model: MachineModel) -> float | None:
    """Return the part of a stage that is done on a machine, 0 to 1; None: nothing is under way."""
    if model.stage not in MOVING or model.done_byte_count >= model.total_byte_count:
        return None
    return model.done_byte_count / model.total_byte_count
