"""One model of a gateway's catalog: what its nodes say of it, and what makes text of its tokens once that is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.errors import MismatchError
from baton.gateway.models.served_model import ModelText, ServedModel, describe, first_of, with_adapters
from baton.gateway.models.status import ModelStatus
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import NodeState
from baton.wire.quantities import seconds_from_duration

_MOST_CHARACTERS = 500
"""Of what is told of nodes that take no requests."""


class PinnedModel(NamedTuple):
    """A model that is served whether a node is there or not."""

    name: str
    text: ModelText
    """From a folder of this machine."""
    context_tokens: int = 0
    """Its own longest sequence, for as long as no node says what it serves; 0: not known."""


class CatalogEntry:
    """One model of the cluster. Invariant: what is `served` has the tokenizer that its nodes have."""

    def __init__(self, name: str, pinned: PinnedModel | None, now_seconds: float) -> None:
        self.name, self.pinned = name, pinned
        self.text = pinned.text if pinned else None
        self.served: ServedModel | None = None
        """What requests need of it; stays when its nodes go, so that requests outlive a router's restart."""
        self.adapted: Mapping[str, ServedModel] = {}
        """The same with each adapter, by its name."""
        self.wanted: ModelStatus | None = None
        """What the planner says of it, if it knows it."""
        self.was_wanted = False
        """Whether the planner has known it."""
        self.seen_seconds = now_seconds
        """When a node of it was listed last."""
        self.problem = ""
        """Why it takes no requests now; empty: it does."""
        self.is_opening = False
        self._nodes: Sequence[NodeDescription] = ()
        self._open_digest = ""
        self._failure = ""
        self._num_failures = 0

    def want(self, wanted: ModelStatus | None) -> None:
        """Take what the planner says of it, if it knows it."""
        self.wanted, self.was_wanted = wanted, self.was_wanted or wanted is not None

    def take(self, states: Sequence[NodeState], now_seconds: float) -> None:
        """Take what the router says of its decode nodes."""
        self._nodes = [state.node for state in states]
        if states:
            self.seen_seconds = now_seconds
        if not states and self.wanted is not None and self.wanted.stage != "serving":
            self.served, self.adapted = None, {}  # it was unloaded: requests say so, or have it loaded
        if self._nodes and not self.pinned and self.text is not None and self._digest() != self._open_digest:
            self.text = self.served = None
            self.adapted = {}
        self._describe()
        self.problem = self._problem_of(states)

    @property
    def next_source(self) -> NodeDescription | None:
        """Return the node to ask for the tokenizer; None: it is open, being opened, or nobody has it."""
        if self.text is not None or self.is_opening or not self._nodes:
            return None
        ordered = sorted(self._nodes, key=lambda node: node.node_id)
        return ordered[self._num_failures % len(ordered)]

    def open(self, text: ModelText | None, failure: str = "") -> None:
        """Take the tokenizer, or why it could not be opened."""
        if text is not None and text.tokenizer.digest != (self._tokenizer_digest() or text.tokenizer.digest):
            text, failure = None, f"nodes of {self.name} have unlike tokenizers"
        self.is_opening, self._failure = False, failure
        self._num_failures += text is None
        if text is not None and self._nodes:
            self.text, self._open_digest, self.problem = text, self._digest(), ""
            self._describe()

    @property
    def status(self) -> ModelStatus:
        """Return where the model is."""
        if self.served is not None and not self.problem:
            return ModelStatus("serving")
        if self._nodes and self.text is None:
            return ModelStatus("loaded", cause=self.problem)
        if self.wanted is not None and (self.wanted.stage != "serving" or not self._nodes):
            return self.wanted if self.wanted.stage != "serving" else ModelStatus("loaded", cause=self.problem)
        return ModelStatus("draining" if self._nodes else "absent", cause=self.problem)

    def mismatch(self) -> MismatchError | None:
        """Return how a pinned tokenizer differs from that of the nodes; None: it does not, or they do not say."""
        found = self._tokenizer_digest()
        if self.pinned is None or not found or found == self.pinned.text.tokenizer.digest:
            return None
        own = self.pinned.text.tokenizer.digest
        return MismatchError("tokenizer_digest", own, found, reason="MODEL_MISMATCH") if own else None

    def _describe(self) -> None:
        if self._nodes and self.text is not None:
            self.served = describe(self.name, self._nodes, self.text) if self.mismatch() is None else None
            self.adapted = with_adapters(self.served, self._nodes) if self.served else {}

    def _problem_of(self, states: Sequence[NodeState]) -> str:
        if not states:
            return f"no decode node serves {self.name}"
        if mismatch := self.mismatch():
            return str(mismatch)
        if self.text is None:
            return self._failure or f"the tokenizer of {self.name} is being opened"
        reasons = {state.node.node_id: state.unusable_reason or _silence(state) for state in states}
        if not all(reasons.values()):
            return ""
        told = "; ".join(f"{node_id}: {reason}" for node_id, reason in sorted(reasons.items()))
        return f"no decode node takes requests: {told[:_MOST_CHARACTERS]}"

    def _tokenizer_digest(self) -> str:
        first = first_of(self._nodes) if self._nodes else NodeDescription()
        return first.tokenizer_digest or first.kv_layout.tokenizer_digest

    def _digest(self) -> str:
        return self._tokenizer_digest() or first_of(self._nodes).text_digest


def _silence(state: NodeState) -> str:
    """Return that a node is silent, if it is; a router of another version does not say."""
    is_heard = not state.HasField("heard_for") or seconds_from_duration(state.heard_for) > 0
    return "" if is_heard else f"no report for {seconds_from_duration(state.report_age):.1f} s"
