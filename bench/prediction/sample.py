"""One request of a replay: what the router expected of every candidate, and what was measured of the one it chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from baton.internal.v1.router_service_pb2 import Candidate as CandidateMessage
from baton.internal.v1.router_service_pb2 import CostEstimate, Placement
from baton.v1.generation_pb2 import PlacementSummary

_DECIMALS = 6
_TERMS = ("queue", "prefill", "transfer", "exposed", "pull", "start", "step", "imposed")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the request."""

    decode_node: str
    prefill_node: str
    """Node that would compute the prompt; that of `decode_node` where it would do so itself."""
    pull_node: str
    """Node from whose prefix cache the beginning would come; empty: none."""
    terms: CostEstimate
    """The router's estimate, seconds."""

    @property
    def way(self) -> tuple[str, str, str]:
        """Return which nodes it uses."""
        return (self.decode_node, self.prefill_node, self.pull_node)

    def total(self, num_output_tokens: int) -> float:
        """Return the expected time until the last of so many tokens."""
        return self.terms.start_seconds + (num_output_tokens - 1) * self.terms.step_seconds


class TokenArrival(NamedTuple):
    """A message with tokens."""

    seconds: float
    num_tokens: int
    """Tokens of the output that had come with it and before it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What happened, seconds."""

    queue: float
    """From acceptance by the decode node until the prompt's computation began; inside the server."""
    prefill: float
    """Its computation; inside the server."""
    transfer: float
    """Time that the link was busy with its KV; inside the server."""
    exposed: float
    """What of it remained after the computation; inside the server."""
    pull: float
    """Until what was pulled was here; inside the server."""
    start: float
    """From the call of the decode node until the first decode step began; the client's."""
    step: float
    """Mean decode step after the first; the client's. 0: fewer than 3 tokens, or all in two messages."""
    ttft: float
    """From before the router was asked until the first token; the client's."""
    total: float
    """From the call of the decode node until its last token; the client's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    called_seconds: float
    """When its decode node was called, by the run's clock."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Generated; 0 where it failed."""
    chosen: Candidate | None = None
    """The router's choice; None where it made none."""
    candidates: tuple[Candidate, ...] = ()
    """All that were feasible, the chosen one too."""
    measured: Measured | None = None
    """None where it failed, or where something else happened than was placed (a fallback, a preemption)."""
    error: str = ""
    """Why `measured` is missing."""

    @property
    def terms(self) -> dict[str, tuple[float, float]]:
        """Return (measured, estimated) seconds by term; a term is left out where neither side has it."""
        chosen, measured = self.chosen, self.measured
        if chosen is None or measured is None:
            return {}
        pairs = {
            "prefill": (measured.prefill, chosen.terms.prefill_seconds),
            "queue": (measured.queue, chosen.terms.queue_seconds),
            "start": (measured.start, chosen.terms.start_seconds),
            "total": (measured.total, chosen.total(self.num_output_tokens)),
        }
        if measured.step > 0:
            pairs["step"] = (measured.step, chosen.terms.step_seconds)
        if chosen.prefill_node != chosen.decode_node or chosen.pull_node:
            pairs["transfer"] = (measured.transfer, chosen.terms.transfer_seconds)
        return pairs

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; candidates as lists: their nodes, and `_TERMS`."""
        return {
            "called": round(self.called_seconds, _DECIMALS),
            "prompt": self.num_prompt_tokens,
            "output": self.num_output_tokens,
            "chosen": self.candidates.index(self.chosen) if self.chosen in self.candidates else None,
            "candidates": [
                [*each.way, *_rounded(getattr(each.terms, f"{name}_seconds") for name in _TERMS)]
                for each in self.candidates
            ],
            "measured": _rounded(astuple(self.measured)) if self.measured else None,
            "error": self.error,
        }


def candidate_of(message: CandidateMessage | Placement, pull_node: str) -> Candidate:
    """Return a feasible candidate of the router's answer, or its choice."""
    prefill_node = message.prefill_node_id or message.decode_node_id
    return Candidate(message.decode_node_id, prefill_node, pull_node, message.estimate)


def measured_of(
    summary: PlacementSummary, arrivals: Sequence[TokenArrival], *, asked: float, called: float
) -> Measured:
    """Return the times of a summary, and those that the client saw.

    The first token of a remote prefill comes ahead of its KV, so what lies between the first two messages is no step:
    decoding began one mean step per token before the second message came. `arrivals` has 1 message with tokens or more,
    in order.
    """
    first, last = arrivals[0], arrivals[-1]
    start, step = first.seconds - called, 0.0
    if len(arrivals) > 2:
        second = arrivals[1]
        step = (last.seconds - second.seconds) / (last.num_tokens - second.num_tokens)
        start = second.seconds - called - step * (second.num_tokens - first.num_tokens)
    return Measured(
        **{name: getattr(summary, f"{name}_duration").ToNanoseconds() / 1e9 for name in Measured.__slots__[:5]},
        start=start,
        step=step,
        ttft=first.seconds - asked,
        total=last.seconds - called,
    )


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, _DECIMALS) for value in values]
