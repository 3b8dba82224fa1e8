"""The remote candidates of one decode node in their order, each priced no further than the order needs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from baton.capacity.cost import FRAME_OVERHEAD_SECONDS
from baton.capacity.kv_transfer import AUTO, LEAST_CHUNK_GAIN, MIN_CHUNK_TOKENS, slowdown
from baton.capacity.search.floors import SLACK, ComputeFloor
from baton.capacity.search.pricing import Best, Limit, Offer, Parts, Pricing
from baton.capacity.search.request_floors import PrefillerFloor
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeSnapshot, PlacementRequest
from baton.capacity.terms import (
    DecodeTerms,
    LandingTerms,
    PrefillTerms,
    joined_seconds,
    landing_terms,
    remote_terms,
    stream_terms,
)

_Pair: TypeAlias = tuple[float, str, ComputeFloor, Link, PrefillTerms | None, LandingTerms | None, Offer | None]
"""A remote candidate, as far as it has been priced: floor of its total, or its total where there is an offer; prefill
node, its coefficients and its link; what has been worked out. A NamedTuple takes a tenth of a decision longer."""


class RemoteOrder:
    """Remote candidates of a decode node: least total first, then by id.

    Invariant: the heap holds every prefill node that was drawn and not given, by floors; who is at its top with a total
    comes before all others, whatever they come to. Prefill nodes are drawn as they come, the soonest first, for as long
    as one might come before the top.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        request: PlacementRequest,
        pricing: Pricing,
        decode: DecodeTerms,
        prefillers: Sequence[PrefillerFloor],
    ) -> None:
        self._snapshot, self._request, self._pricing = snapshot, request, pricing
        self._decode, self._prefillers, self._is_back = decode, prefillers, pricing.are_remotes_back
        self._known: dict[str, _Pair] = {}
        self._pair = _pairing(snapshot, request, decode, self._known)
        self._after = decode.match.restore.seconds + decode.total_seconds(decode.join_seconds, decode.slowdown_seconds)
        self._heap: list[_Pair] = []
        self._given: list[Offer] = []
        self.num_drawn = 0
        """Prefill nodes that it has looked at."""

    def offer_to(self, best: Best) -> None:
        """Offer candidates in their order, as far as they can be among the best."""
        is_back, decode_id = self._is_back, self._decode.node.node_id
        for offer in self._given:
            best.offer(offer)
        while self._draw():
            seconds, prefill_id, *_, priced = self._heap[0]
            least = (is_back, seconds, True, False, decode_id, prefill_id)
            if len(best.kept) == best.num_kept and least > best.kept[-1][0]:  # nor can any later one get among them
                break
            if priced is None:
                heapq.heapreplace(self._heap, self._closer(self._heap[0]))
            else:
                heapq.heappop(self._heap)
                self._given.append(priced)
                best.offer(priced)

    def within(self, prefillers: Iterable[PrefillerFloor], limit: Limit) -> list[_Pair]:
        """Return those of some prefill nodes, the soonest first, whose floors are within a limit."""
        is_back, pairs = self._is_back, list[_Pair]()
        for each in prefillers:
            if (is_back, (each[0] + self._after) * SLACK) > limit:
                break
            pair = self._pair(each)
            if pair and (is_back, pair[0]) <= limit:
                pairs.append(pair)
        return pairs

    def priced(self, pairs: Iterable[_Pair], limit: Limit) -> Iterator[Offer]:
        """Give those of these candidates that may be within a limit, as they are."""
        for pair in pairs:
            while pair[-1] is None and (self._is_back, pair[0]) <= limit:
                pair = self._closer(pair)
            if pair[-1] is not None:
                yield pair[-1]

    def _closer(self, pair: _Pair) -> _Pair:
        """Return a candidate with its total, or, where streams come to the decode node, with a closer floor before."""
        decode, (seconds, prefill_id, compute, link, prefill, landing, offer) = self._decode, pair
        is_looked_at = landing is not None or not decode.node.receiving
        if prefill is None or landing is None:
            prefill = self._pricing.prefill(compute.node)
            landing = landing_terms(self._request, decode, prefill)
        if is_looked_at:
            stream = stream_terms(decode, prefill, landing, link, self._snapshot.wire_policy)
            terms = remote_terms(decode, prefill, link, stream)
            seconds = decode.total_seconds(terms.start_seconds, terms.imposed_seconds)
            rank = (self._is_back, seconds, True, False, decode.node.node_id, prefill_id)
            offer = (rank, Parts(decode, prefill, link, terms))
        else:
            _, begin, computing = landing.window
            arrived = begin + max(computing, landing.landing_seconds) + link.round_trip_seconds
            joined = joined_seconds(decode, arrived)
            total = decode.total_seconds(joined, decode.slowdown_seconds + prefill.imposed_seconds)
            seconds = max(seconds, total * SLACK)
        closer = self._known[prefill_id] = (seconds, prefill_id, compute, link, prefill, landing, offer)
        return closer

    def _draw(self) -> bool:
        """Look at the prefill nodes that may come before the top; return whether there is a top."""
        heap, prefillers = self._heap, self._prefillers
        while self.num_drawn < len(prefillers):
            prefiller = prefillers[self.num_drawn]
            if heap and heap[0][0] < (prefiller[0] + self._after) * SLACK:
                break
            self.num_drawn += 1
            pair = self._pair(prefiller)
            if pair:
                heapq.heappush(heap, pair)
        return bool(heap)


def _pipeline_seconds(node: NodeSnapshot, num_tokens: int, computing: float, sending: float) -> float:
    """Return what computing a prompt and sending it take together at least, but for the last frame's fixed cost.

    Of G frames at most, the shorter of both shows 1 / G at least beside the longer one: of as many as layers and passes
    make. Shorter chunks save half of what is beyond the longer one at best, and are chosen where that is
    `LEAST_CHUNK_GAIN` of the start, so as much remains. Source: `kv_transfer.plan_frames`.
    """
    num_passes = -(-num_tokens // (node.max_step_tokens or num_tokens))
    longer, shorter = (computing, sending) if computing > sending else (sending, computing)
    exposed = shorter / (num_passes * node.shape.num_layers)
    if exposed > (gain := LEAST_CHUNK_GAIN * longer - FRAME_OVERHEAD_SECONDS):
        most_frames = 1 + max(sending / FRAME_OVERHEAD_SECONDS, num_tokens / MIN_CHUNK_TOKENS, num_passes)
        exposed = max(gain, shorter / most_frames)
    return longer + exposed


def _pairing(
    snapshot: ClusterSnapshot, request: PlacementRequest, decode: DecodeTerms, known: Mapping[str, _Pair]
) -> Callable[[PrefillerFloor], _Pair | None]:
    """Return what gives a prefill node's pair with a decode node: as `known`, or its floor; None: it cannot send to it.

    Where the decode node's own prompts are what a pair waits for, its floor is its total to the last bit, so that ties
    end a search, too.

    A stream that begins b later meets at most b * rate bytes less of what comes (`kv_transfer.slowdown`), so it is
    never in memory sooner than if it had begun at once; and it meets all that, unless its computation takes more than
    twice as long as writing it alone.
    """
    node, num_tokens = decode.node, request.num_prompt_tokens
    link_of, default_link, wire = snapshot.links.get, snapshot.default_link, snapshot.wire_policy
    is_lossless = wire.keys == AUTO == wire.values and wire.allowed_loss <= 0
    decode_id, token_bytes = node.node_id, node.shape.kv_bytes_per_token
    room, restore = decode.room_seconds, decode.match.restore.seconds
    after = decode.total_seconds(0.0, decode.slowdown_seconds)
    own_prompts = node.queue.total_seconds
    after_prompts = decode.total_seconds(own_prompts, decode.slowdown_seconds)
    num_sent = num_tokens - decode.match.num_tokens
    landing_rate = node.load.landing_bytes_per_second
    landing = num_sent * token_bytes / landing_rate if landing_rate else 0.0
    waited = landing + node.load.num_landing_bytes / landing_rate if landing_rate else 0.0
    num_bytes = num_sent * token_bytes + node.shape.state_bytes
    beside = landing * slowdown(num_bytes, landing_rate, 0.0, 0.0, node.receiving) if landing_rate else 0.0
    beside = max(beside, waited)
    cached_ids = request.cached_tokens.keys() | request.lower_tokens.keys()

    def pair(floor: PrefillerFloor) -> _Pair | None:  # `max` and look-ups cost more here than all else
        ready, queue, stall, _, compute = floor
        prefiller = compute.node
        prefill_id = prefiller.node_id
        if prefill_id in known:
            return known[prefill_id]
        link = link_of((prefill_id, decode_id), default_link)
        if link.mismatch or prefill_id == decode_id:
            return None
        sent = landing
        if is_lossless:
            wire_bytes = link.wires[0].key_bytes + link.wires[0].value_bytes if link.wires else token_bytes
            on_link = num_sent * wire_bytes / link.bytes_per_second
            if on_link > sent:
                sent = on_link
        own = ready - stall - queue
        arrived = restore + (queue if queue > room else room) + _pipeline_seconds(prefiller, num_tokens, own, sent)
        landed = beside if own <= 2 * landing and prefill_id not in cached_ids else waited
        if landed > arrived:
            arrived = landed
        arrived += link.round_trip_seconds + FRAME_OVERHEAD_SECONDS  # of its last frame
        joined = joined_seconds(decode, arrived)
        seconds = (joined + after + stall) * SLACK
        if joined == own_prompts and after_prompts > seconds:
            seconds = after_prompts
        return seconds, prefill_id, compute, link, None, None, None

    return pair
