"""How far a model is on its way to requests, and what clients are told of one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from baton.errors import NotFoundError, UnavailableError
from baton.gateway.cluster.router_client import NO_NODE
from baton.internal.v1.model_service_pb2 import ModelState
from baton.wire.model_stages import Stage, progress, stage_name
from baton.wire.quantities import seconds_from_duration

MODEL_LOADING, MODEL_FAILED = "MODEL_LOADING", "MODEL_FAILED"
"""Reasons why a model that is known does not answer: a node is going to have it, or none can."""
_MOST_NAMES, _LIKENESS = 5, 0.5
_RETRY_SECONDS = 5


class ModelStatus(NamedTuple):
    """Where one model is."""

    stage: Stage
    """Of its nodes, that of the one which is farthest."""
    progress: float | None = None
    """Part of the stage that is done, 0 to 1; None: not known."""
    cause: str = ""
    """Why it does not answer, in words; empty: it does, or nobody has said."""
    ready_in_seconds: float | None = None
    """Time until it probably answers; None: not known."""
    is_on_demand: bool = False
    """Whether a request for it has it loaded."""

    @property
    def is_coming(self) -> bool:
        """Return whether waiting makes sense: it is on its way, or a request sends it there."""
        return self.stage in ("fetching", "loaded") or self.ready_in_seconds is not None or self.is_on_demand

    def refusal(self, name: str) -> UnavailableError:
        """Return what a request is told that comes too early; clients may try again after `retry_after_seconds`."""
        told: str = "loading" if self.stage == "loaded" else self.stage  # by a worker, that is
        told += f", {self.progress:.0%} done" if self.progress is not None else ""
        told += f", about {self.ready_in_seconds:.0f} s more" if self.ready_in_seconds else ""
        problem = f"the model `{name}` does not answer yet ({told}){f': {self.cause}' if self.cause else ''}"
        if self.stage == "absent":
            problem = self.cause or f"no node serves the model `{name}`"
        metadata = {"retry_after_seconds": str(max(1, round(self.ready_in_seconds or _RETRY_SECONDS)))}
        metadata |= {"stage": self.stage}
        if self.progress is not None:
            metadata["progress"] = f"{self.progress:.3f}"
        reason = {"failed": MODEL_FAILED, "absent": NO_NODE, "draining": NO_NODE}.get(self.stage, MODEL_LOADING)
        return UnavailableError(problem, reason=reason, metadata=metadata)


def status_of(state: ModelState) -> ModelStatus:
    """Return what the planner says of a model: how far the machine is that is farthest."""
    shares = [progress(each) for each in state.machines.values() if each.stage == state.stage]
    return ModelStatus(
        stage_name(state.stage),
        max((share for share in shares if share is not None), default=None),
        state.problem or ("it was unloaded; `baton models load` loads it" if state.desired.is_unloaded else ""),
        seconds_from_duration(state.ready_in) if state.HasField("ready_in") else None,
        state.desired.is_on_demand and not state.desired.is_unloaded,
    )


def unknown_model(name: str, served: Sequence[str]) -> NotFoundError:
    """Return the error of a name that nobody serves; it has the names that are most like it, or all where few are."""
    told = served
    if len(told) > _MOST_NAMES:
        by_fold = {each.casefold(): each for each in told}
        near = difflib.get_close_matches(name.casefold()[:200], by_fold, _MOST_NAMES, _LIKENESS)
        told = [by_fold[each] for each in near] or told[:_MOST_NAMES]
    shown = ", ".join(f"`{each}`" for each in told) or "none"
    likeness = f", {len(served)} models, most like it {shown}" if len(told) < len(served) else f" {shown}"
    return NotFoundError(f"The model `{name[:200]}` does not exist; this gateway serves{likeness}")
