"""Requests through a link with one fault each: what became of them, and how long the repair took."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest as Request
from baton.internal.v1.router_service_pb2 import Peer
from baton.shm.lender import Segment
from decode.neighbour import NEIGHBOUR_ID, Neighbour, pulling_request
from decode.pair import SPARE_ID, Answer, Pair, generate, request_of
from engine.rig import GREEDY, LAYOUT, expected_tokens, prompt_of
from system.kv_faults.proxy import HOST, KINDS, LIES, Fault, FaultProxy, Kind

DEADLINE_SECONDS = 10.0
"""Time within which every request ends."""
SILENCE_SECONDS = 0.25
"""Silence after which the decode node of a campaign gives a stream up."""
NUM_NEW_TOKENS = 8
BATCH = 25
PROVEN = LIES | {"flip", "foreign", "stale", "swap_payloads", "flip_memory"}
"""Faults that are always noticed, unless they changed nothing but what a sender tells of its own work."""
_PROMPT_TOKENS = (3, 17, 41, 60)
_FOREIGN_PROMPT = prompt_of(41, seed=99)


@dataclass(frozen=True)
class Result:
    """What became of one request."""

    kind: Kind
    """The fault."""
    transport: str
    """What carried the KV."""
    index: int
    """Message that was hit."""
    outcome: str
    """How the tokens came about: "unharmed", what took over last, or "re-placed"."""
    recovery_seconds: float
    """From the fault until the client had all tokens."""


class Oracle(Protocol):
    """Knows what a model says."""

    model_id: str
    """Its served name."""
    has_spare: bool
    """Whether the pair's spare prefill node serves it too."""

    async def tokens(self, pair: Pair, prompt: Sequence[int]) -> list[int]:
        """Return what follows a prompt, greedily."""


class MockOracle:
    """Knows the mock model from its formula: every bit of the KV shows in its tokens."""

    model_id = LAYOUT.model_id
    has_spare = True

    async def tokens(self, pair: Pair, prompt: Sequence[int]) -> list[int]:
        """See `Oracle`."""
        return expected_tokens(prompt, NUM_NEW_TOKENS)


class LocalOracle:
    """Asks the decode node itself, once per prompt, without a prefill node."""

    has_spare = False

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self._known: dict[tuple[int, ...], list[int]] = {}

    async def tokens(self, pair: Pair, prompt: Sequence[int]) -> list[int]:
        """See `Oracle`."""
        key = tuple(prompt)
        if key not in self._known:
            params = replace(GREEDY, max_tokens=NUM_NEW_TOKENS)
            name = f"local-{len(self._known)}"
            request = request_of(
                key, params, request_id=name, model_id=self.model_id, prefill_node_id="", bypass_prefix_cache=True
            )
            self._known[key] = (await generate(pair, request)).token_ids
        return self._known[key]


@dataclass
class Campaign:
    """Injects faults, one per request, into both nodes' link.

    Every request is checked as it ends: all of its tokens and no wrong one, before its deadline; and every block of all
    three nodes is free then.

    Args:
        seed: Of everything that is drawn.
        transport: What carries the KV; "pull": the gRPC library, from a neighbour's prefix cache.
    """

    seed: int
    transport: str
    oracle: Oracle = field(default_factory=MockOracle)
    """Says what is right."""
    results: list[Result] = field(default_factory=list)
    num_prompt_seeds: int = 1000
    """Of how many prompts of a length are drawn."""
    num_missed: int = 0
    """Faults that were not reached: their stream had fewer messages, or none that the fault is made of."""
    neighbour: Neighbour | None = None
    """Whose cache is pulled from."""

    async def run(
        self,
        pair: Pair,
        num_faults: int,
        *,
        kinds: Sequence[Kind] = tuple(KINDS),
        after_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Inject faults until this many have happened, every kind at every message in turn.

        Args:
            pair: The nodes.
            num_faults: How many.
            kinds: Which.
            after_batch: Called after every BATCH requests.
        """
        drawn = random.Random(f"{self.seed} {self.transport}")
        async with AsyncExitStack() as stack:
            ports = [self.neighbour.server.port] if self.neighbour else [pair.prefill_server.port, pair.fast_port]
            proxies = [await stack.enter_async_context(FaultProxy(port)) for port in ports]
            self._pair, self._proxies = pair, proxies
            self._proxy = proxies[0 if self.transport in ("grpc", "pull") else 1]
            give = pair.lender._segment
            pair.lender._segment = lambda: self._noted(give())  # type: ignore[method-assign]
            for proxy, other in zip(proxies, reversed(proxies), strict=True):
                proxy.on_kill_sender = other.kill
            self._ports = [proxy.port for proxy in proxies]
            self._epoch = 1
            await self._record_foreign()
            number = 0
            while len(self.results) < num_faults:
                kind = kinds[number % len(kinds)]
                index = number // len(kinds) % 13 if drawn.random() < 0.5 else drawn.randrange(13)
                await self._inject(number, Fault(kind, index, drawn.randrange(1 << 32), 2 * SILENCE_SECONDS), drawn)
                number += 1
                if number % BATCH == 0:
                    after_batch()

    async def _record_foreign(self) -> None:
        """Have another request's stream at hand."""
        await self._reconnect()
        self._proxy.others["foreign"] = await self._messages_of(self._request(_FOREIGN_PROMPT, "foreign"))

    async def _messages_of(self, request: Request) -> list[bytes]:
        """Return what is sent for a request without a fault."""
        self._proxy.arm(None, request.request_id)
        await self._warm(request)
        await generate(self._pair, request)
        return self._proxy.messages

    async def _warm(self, request: Request) -> None:
        """Have in the neighbour's cache what is to be pulled."""
        if self.neighbour is not None:
            await self.neighbour.warm(request.prompt_token_ids, cache_salt=request.cache_salt)

    def _noted(self, segment: Segment | None) -> Segment | None:
        if segment is not None:
            self._proxy.segments.append(segment)
        return segment

    async def _inject(self, number: int, fault: Fault, drawn: random.Random) -> None:
        await self._reconnect()
        prompt = prompt_of(
            drawn.choice(_PROMPT_TOKENS[bool(self.neighbour) :]), seed=drawn.randrange(self.num_prompt_seeds)
        )
        expected = await self.oracle.tokens(self._pair, prompt)
        request = self._request(
            prompt, f"{self.transport}-{number}", is_spared=self.oracle.has_spare and drawn.random() < 0.5
        )
        if drawn.random() < 0.5 and self.neighbour is None:
            request.bypass_prefix_cache = True
        if self.oracle.has_spare and drawn.random() < 0.3:
            request.sampling.temperature, request.sampling.seed = 1.0, number
        if fault.kind == "stale":
            self._proxy.others["stale"] = await self._messages_of(request)
            request.attempt, request.cache_salt = 2, f"{request.cache_salt}-again"
            await self._reconnect()
        await self._warm(request)
        self._proxy.segments.clear()
        for proxy in self._proxies:
            proxy.arm(fault if proxy is self._proxy else None, request.request_id)
        asked = [asyncio.create_task(self._answer(request))]
        if drawn.random() < 0.3:
            beside = self._request(prompt_of(41, seed=number % self.num_prompt_seeds), f"{request.request_id}-beside")
            await self._warm(beside)
            asked.append(asyncio.create_task(self._answer(beside)))
        if fault.kind == "kill_receiver":
            self._proxy.on_kill_receiver = asked[0].cancel
        began = asyncio.get_running_loop().time()
        await asyncio.wait(asked, timeout=DEADLINE_SECONDS)
        answer = await self._finish(asked[0], request, fault)
        ended = asyncio.get_running_loop().time()
        reasons = _reasons_of(answer)
        if len(asked) > 1:
            other = await asked[1]
            assert other.token_ids == await self.oracle.tokens(self._pair, beside.prompt_token_ids), fault
            reasons += _reasons_of(other)
        assert answer.token_ids == expected, (fault, answer.summary)
        assert ended - began < DEADLINE_SECONDS, f"{fault}: the request took {ended - began:.1f} s"
        if self._proxy.injected_at is not None and fault.kind in PROVEN and not self._proxy.is_harmless:
            assert reasons, f"{fault} went unnoticed"
        await self._pair.settle()
        self._pair.forget()
        if self.neighbour is not None:
            await self.neighbour.node.settle()
            self.neighbour.servicer.requests.clear()
            self.neighbour.node.forget()
        if self._proxy.injected_at is None:
            self.num_missed += 1
            return
        outcome = "re-placed" if fault.kind == "kill_receiver" and request.attempt > 1 else outcome_of(answer)
        seconds = ended - self._proxy.injected_at
        self.results.append(Result(fault.kind, self.transport, fault.index, outcome, seconds))

    async def _finish(self, asked: asyncio.Task[Answer], request: Request, fault: Fault) -> Answer:
        """Return the answer; where the client was made to go, that of another attempt."""
        if fault.kind != "kill_receiver" or not asked.cancelled():
            return await asked
        self._proxy.arm(None)
        self._proxy.note_injected()
        request.attempt += 1
        return await self._answer(request)

    async def _answer(self, request: Request) -> Answer:
        return await generate(self._pair, request)

    def _request(self, prompt: Sequence[int], name: str, *, is_spared: bool = False) -> Request:
        params = replace(GREEDY, max_tokens=NUM_NEW_TOKENS)
        fields = {"request_id": name, "model_id": self.oracle.model_id, "cache_salt": name}
        if self.neighbour is not None:
            request = pulling_request(prompt, params=params, pull={"layers_per_frame": 1}, **fields)
        else:
            spares = [SPARE_ID] if is_spared else []
            request = request_of(prompt, params, alternative_node_ids=spares, **fields)
            request.placement.layers_per_frame = 1
        request.timeout.FromSeconds(int(DEADLINE_SECONDS))
        return request

    async def _reconnect(self) -> None:
        """Begin with new connections, through the proxies."""
        self._epoch += 1
        if self.neighbour is not None:
            address = f"{HOST}:{self._ports[0]}"
            await self._pair.name_peers(Peer(node_id=NEIGHBOUR_ID, address=address, epoch=self._epoch))
            return
        peer = self._pair.peer(self._epoch)
        peer.address = f"{HOST}:{self._ports[0]}"
        peer.fast_address = f"{HOST}:{self._ports[1]}" if self.transport != "grpc" else ""
        await self._pair.name_peers(peer, self._pair.spare_side.peer())


def _reasons_of(answer: Answer) -> list[str]:
    """Return what was noticed: streams that broke, and a fast path that could not begin, which gRPC stood in for."""
    summary = answer.summary
    return [*summary.kv_break_reasons, *(["REFUSED"] if summary.kv_transport_reason == "REFUSED" else [])]


def outcome_of(answer: Answer) -> str:
    """Return what took over from the broken stream."""
    summary = answer.summary
    if not summary.kv_break_reasons:
        return "unharmed"
    if summary.fallback_reason or summary.pull_node_id:
        return "computed here"
    if not summary.kv_resume_count:
        return "complete"
    return "other node" if summary.prefill_node_id == SPARE_ID else "same node"
