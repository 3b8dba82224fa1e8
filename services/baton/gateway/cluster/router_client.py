"""The gateway's side of the router: placements, retried over a short absence, and what its nodes serve."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import grpc

from baton.errors import BatonError, MismatchError, NotFoundError, UnavailableError
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import ListNodesRequest, NodeState, PlaceRequest, PlaceResponse
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv.adapter import Adapter, adapted_revision
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.status import error_from_rpc, without_address
from baton.wire.node_roles import decodes
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)

NO_NODE = "NO_NODE"
"""Reason of the router's refusal when no node can take a request."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_SECOND_LOOK_SECONDS = 0.5
"""After a look that failed, until the next: a router that is just being replaced is no reason to leave."""
_LATE_SECONDS = 0.02
"""After a node would have fallen silent, it is looked at."""
_NUMBER = re.compile(r"[0-9.]+")
"""In a problem: seconds of silence grow without being news."""
_MOST_CHARACTERS = 500
"""Of what is told of nodes that take no requests."""


class RouterClient:
    """Asks one router. `close` ends its channel."""

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        self._address = address
        self._cause = ""
        self._timeout_seconds = timeout_seconds
        self._channel = LoopChannel(address, is_balanced=True)
        self._stub = RouterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def place(self, request: PlaceRequest) -> PlaceResponse:
        """Return where a request runs; asks for `timeout_seconds` at most while the router is away or knows no node.

        Nodes that an earlier attempt excluded are allowed again once no other is left, and waited for as long as the
        router: they may be restarting.

        Raises:
            BatonError: The router's refusal, or UnavailableError if it did not answer in time.
        """
        loop = asyncio.get_running_loop()
        is_patient = bool(request.excluded_node_ids)
        deadline, pause_seconds = loop.time() + self._timeout_seconds, _FIRST_PAUSE_SECONDS
        refusal: UnavailableError | None = None
        while True:
            try:
                response: PlaceResponse = await self._stub.Place(request, timeout=max(0.05, deadline - loop.time()))
                return response
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                if isinstance(error, NotFoundError):  # nodes have served it: a router that has just started knows none
                    error, is_patient = UnavailableError(error.message, reason=NO_NODE), True
                is_final = error.reason == NO_NODE and not is_patient
                if is_final or not isinstance(error, UnavailableError):
                    raise error from rpc_error
                if loop.time() + pause_seconds >= deadline:
                    raise self._absence(refusal or error) from rpc_error
            if error.reason == NO_NODE:
                refusal = error
                del request.excluded_node_ids[:]
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def list_nodes(self) -> Sequence[NodeDescription]:
        """Return the nodes that the router knows.

        Raises:
            BatonError: If the router does not answer.
        """
        return [state.node for state in await self.list_node_states()]

    async def list_node_states(self) -> Sequence[NodeState]:
        """Return the nodes that the router knows, with their load and links.

        Raises:
            BatonError: If the router does not answer.
        """
        try:
            response = await self._stub.ListNodes(ListNodesRequest(), timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._absence(error_from_rpc(error)) from error
        states: Sequence[NodeState] = response.nodes
        return states

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def _absence(self, error: BatonError) -> BatonError:
        """Return an error as clients are told of it; where the router is, the log says, once for each cause."""
        if error.reason == NO_NODE or not isinstance(error, UnavailableError):
            return error
        if error.message != self._cause:
            self._cause = error.message
            log.warning("router_away address=%s cause=%r", self._address, error.message)
        shown = without_address(error, "there is no connection to it")
        return UnavailableError(f"the router does not answer: {shown.message}", reason="ROUTER_UNAVAILABLE")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its decode nodes describe it."""

    name: str
    """Served name; of the model alone."""
    revision_digest: str
    """Digest of configuration and weights, those of the adapter included."""
    tokenizer_digest: str
    """Digest of the tokenizer; empty: not known, not compared."""
    block_tokens: int
    """Tokens of one KV block."""
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    """Rows of the output projection."""
    eos_token_ids: frozenset[int]
    """Tokens that end a generation."""
    context_bound: str = ""
    """Why the longest sequence is shorter than the model's own, in words; empty: it is not."""
    adapter: Adapter | None = None
    """What is computed besides the model; None: nothing."""

    def with_adapter(self, adapter: Adapter) -> ServedModel:
        """Return the model with an adapter, which is another one."""
        return replace(self, revision_digest=adapted_revision(self.revision_digest, adapter.digest), adapter=adapter)


class ModelCatalog:
    """Keeps the description of the one model whose tokenizer this gateway has, and of its adapters.

    Invariant: a description stays until another replaces it, so that requests survive a restart of the router. Whoever
    wants to know which nodes there are is told by `on_nodes` at every look.
    """

    def __init__(
        self,
        router: RouterClient,
        *,
        model_name: str,
        tokenizer_digest: str,
        poll_seconds: float,
        on_nodes: Callable[[Collection[str]], None] = lambda _node_ids: None,
        known_context_tokens: int = 0,
    ) -> None:
        """Know no node.

        Args:
            router: Asked for the nodes.
            model_name: Name of the model without an adapter.
            tokenizer_digest: Of the gateway; empty: not compared.
            poll_seconds: Pause between two looks at the nodes.
            on_nodes: Told of the nodes' ids at every look.
            known_context_tokens: The model's own longest sequence, for as long as no node says what it serves; 0: not
                known.
        """
        self._router = router
        self._on_nodes = on_nodes
        self._poll_seconds = poll_seconds
        self._tokenizer_digest = tokenizer_digest
        self._served: ServedModel | None = None
        self._adapted: dict[str, ServedModel] = {}
        self._known_context_tokens = known_context_tokens
        self._problem = "the router has not been reached yet"
        self._on_problem: Callable[[str], None] = lambda _problem: None
        self._is_closed = False
        self._heard_seconds = poll_seconds
        self._is_router_missed = False
        self.model_name = model_name
        """Name of the model without an adapter."""

    @property
    def problem(self) -> str:
        """Return why requests cannot be served right now; empty if they can."""
        return self._problem

    def follow(self, on_problem: Callable[[str], None]) -> None:
        """Have a function told of `problem`, now and whenever it changes."""
        self._on_problem = on_problem
        on_problem(self._problem)

    def close(self, problem: str) -> None:
        """Have a problem for good: the gateway stops."""
        self._note(problem)
        self._is_closed = True

    async def run(self) -> None:
        """Look at the router's nodes for ever, and in between when the last that decodes would have fallen silent."""
        while True:
            self._heard_seconds = self._poll_seconds
            await self.refresh()
            await asyncio.sleep(min(self._poll_seconds, self._heard_seconds))

    async def refresh(self) -> None:
        """Look at the router's nodes once; a failure becomes `problem`, one by itself only if it took long."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            states = await self._router.list_node_states()
        except BatonError as error:
            if self._is_router_missed or self._problem or clock() - begun > _SECOND_LOOK_SECONDS:
                self._note(error.message)
            self._is_router_missed = True
            self._heard_seconds = min(self._heard_seconds, _SECOND_LOOK_SECONDS)
            return
        self._is_router_missed = False
        nodes = [state.node for state in states]
        self._on_nodes({node.node_id for node in nodes})
        served = describe(self.model_name, nodes)
        if served is None:
            self._note(f"no decode node serves {self.model_name}")
            return
        self._served = served
        self._adapted = {each.name: served.with_adapter(each) for each in adapters_of(self.model_name, nodes)}
        self._note(str(self._mismatch(served) or self._absence(states)))

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Return the names of the model's adapters, sorted; each can be asked for like a model."""
        return tuple(sorted(self._adapted))

    async def model(self, name: str) -> ServedModel:
        """Return the model of a name, its own or an adapter's.

        Raises:
            NotFoundError: If the gateway does not serve it.
            UnavailableError: If no node has been seen that does.
            MismatchError: If the nodes have another tokenizer than the gateway.
        """
        self.check_name(name)
        if self._served is None or self._mismatch(self._served) is not None:
            await self.refresh()
        if self._served is None:
            raise UnavailableError(self._problem, reason=NO_NODE)
        mismatch = self._mismatch(self._served)
        if mismatch is not None:
            raise mismatch
        self.check_name(name)
        return self._adapted.get(name, self._served)

    def check_name(self, name: str) -> None:
        """Check that a model, or an adapter of it, is served here; before a node has been seen, any might be.

        Raises:
            NotFoundError: If it is not.
        """
        if self._served is not None and name not in self._adapted:
            self.check_model_name(name)

    def check_model_name(self, name: str) -> None:
        """Check that a name is the model's own.

        Raises:
            NotFoundError: If it is not.
        """
        if name != self.model_name:
            served = ", ".join(f"`{each}`" for each in (self.model_name, *self.adapter_names))
            raise NotFoundError(f"The model `{name}` does not exist; this gateway serves {served}")

    @property
    def max_context_tokens(self) -> int:
        """Return the longest sequence of the model; its own while no node has been seen, 0 if that is not known."""
        return self._served.max_context_tokens if self._served is not None else self._known_context_tokens

    def _mismatch(self, served: ServedModel) -> MismatchError | None:
        if not served.tokenizer_digest or not self._tokenizer_digest:
            return None
        if served.tokenizer_digest == self._tokenizer_digest:
            return None
        return MismatchError(
            "tokenizer_digest", self._tokenizer_digest, served.tokenizer_digest, reason="MODEL_MISMATCH"
        )

    def _absence(self, states: Sequence[NodeState]) -> str:
        """Return why none of the nodes takes requests; empty if one does."""
        nodes = [state for state in states if decodes(state.node) and state.node.model_id == self.model_name]
        reasons = {state.node.node_id: state.unusable_reason or _silence(state) for state in nodes}
        heard = [state.heard_for for state in nodes if not reasons[state.node.node_id] and state.HasField("heard_for")]
        self._heard_seconds = max(map(seconds_from_duration, heard), default=self._poll_seconds) + _LATE_SECONDS
        if not all(reasons.values()):
            return ""
        told = "; ".join(f"{node_id}: {reason}" for node_id, reason in sorted(reasons.items()))
        return f"no decode node takes requests: {told[:_MOST_CHARACTERS]}"

    def _note(self, problem: str) -> None:
        if problem == self._problem or self._is_closed:
            return
        if _NUMBER.sub("", problem) != _NUMBER.sub("", self._problem):
            log.info("catalog_changed model=%s problem=%r", self.model_name, problem)
        self._problem = problem
        self._on_problem(problem)


def _silence(state: NodeState) -> str:
    """Return that a node is silent, if it is; a router of another version does not say."""
    is_heard = not state.HasField("heard_for") or seconds_from_duration(state.heard_for) > 0
    return "" if is_heard else f"no report for {seconds_from_duration(state.report_age):.1f} s"


def adapters_of(model_name: str, nodes: Iterable[NodeDescription]) -> tuple[Adapter, ...]:
    """Return the adapters that decode nodes have, by name; where digests differ, as the first of the nodes has it."""
    adapters: dict[str, Adapter] = {}
    for node in sorted(nodes, key=lambda node: node.node_id):
        if decodes(node) and node.model_id == model_name:
            for adapter in node.adapters:
                known = adapters.setdefault(adapter.name, Adapter(adapter.name, adapter.digest))
                if known.digest != adapter.digest:
                    log.warning("adapter_differs adapter=%s node=%s digest=%s", known, node.node_id, adapter.digest)
    return tuple(adapters.values())


def _context_bound(node: NodeDescription) -> str:
    """Return why a node takes no sequences as long as the model does; nothing where it does."""
    num_tokens = node.model_shape.max_context_token_count
    if node.model_context_token_count <= num_tokens:
        return ""
    cause = f" ({node.block_count_cause})" if node.block_count_cause else ""
    return (
        f"The KV pool of node {node.node_id} holds {num_tokens} tokens{cause}, fewer than the "
        f"{node.model_context_token_count} that the model takes; a larger --num-blocks there raises it."
    )


def describe(model_name: str, nodes: Iterable[NodeDescription]) -> ServedModel | None:
    """Return a model as the first of its decode nodes describes it, or None if there is none."""
    decode_nodes = [node for node in nodes if decodes(node) and node.model_id == model_name]
    if not decode_nodes:
        return None
    first = min(decode_nodes, key=lambda node: node.node_id)
    roomiest = max(decode_nodes, key=lambda node: node.model_shape.max_context_token_count)
    return ServedModel(
        name=model_name,
        revision_digest=first.kv_layout.model_revision_digest,
        tokenizer_digest=first.tokenizer_digest or first.kv_layout.tokenizer_digest,
        block_tokens=max(1, first.block_token_count),
        max_context_tokens=roomiest.model_shape.max_context_token_count,
        context_bound=_context_bound(roomiest),
        vocabulary_size=first.model_shape.vocabulary_size,
        eos_token_ids=frozenset(first.eos_token_ids),
    )
