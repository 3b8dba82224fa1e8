"""Floors of one request's candidates: rough ones of every decode node, closer ones of those that a search reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from baton.capacity.search.floors import SLACK, ComputeFloor, DecodeFloor
from baton.capacity.snapshot import ClusterSnapshot, NodeSnapshot, PlacementRequest, expected_output_tokens
from baton.capacity.terms import seconds_beside_prompts

NODE, LOCAL, PULL, REMOTE = range(4)
"""What a floor is of: all candidates of a decode node, or those of one kind."""


Entry: TypeAlias = tuple[bool, float, int, int]
"""Whether the policy puts it back, floor of the total, what it is of, number of the decode node."""


PrefillerFloor: TypeAlias = tuple[float, float, float, int, ComputeFloor]
"""A prefill node's part of the floor of its remote candidates, seconds: of queue, computation and what that imposes on
others together, of the queue, and of what is imposed; the number of the node, and the node."""


class RequestFloors:
    """Floors of one request."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        request: PlacementRequest,
        decoders: Sequence[DecodeFloor],
        prefillers: Sequence[ComputeFloor],
    ) -> None:
        self._snapshot, self._request = snapshot, request
        self._decoders = decoders
        self._cached_ids = request.cached_tokens.keys() | request.lower_tokens.keys()
        self.pullable = 0
        """Positions of the prompt that anybody could take from elsewhere, at most."""
        if snapshot.holder_ids and not request.needs_local_prefill:
            most = max(map(request.pullable_from, snapshot.holder_ids))
            self.pullable = min(most, request.num_prompt_tokens - 1)
        self.prefillers = [] if request.needs_local_prefill else self._sorted(prefillers)
        """Prefill nodes that can take the prompt, least floor first."""
        self.least_start = self.prefillers[0][0] if self.prefillers else math.inf
        """The least of their floors, seconds."""

    def most_cached(self, node: NodeSnapshot) -> int:
        """Return the positions that a node need not compute at most, with all that it could bring back."""
        request = self._request
        lower = request.lower_tokens.get(node.node_id)
        num_tokens = request.cached_tokens.get(node.node_id, 0) + (lower.num_tokens if lower else 0)
        return min(num_tokens, request.num_prompt_tokens - 1)

    def rough(self) -> list[Entry]:
        """Return a floor of every decode node that can take the request, as if it had room and computed nothing."""
        request, cached_ids, least_start = self._request, self._cached_ids, self.least_start
        num_tokens, excluded, pullable = request.num_prompt_tokens, request.excluded_node_ids, self.pullable
        mean_output = self._snapshot.expected_output_tokens
        entries: list[Entry] = []
        last_context, expected, total_tokens, own = 0, 0.0, 0, 0.0
        for index, floor in enumerate(self._decoders):
            compute, context, held, read_token, by_math, math_token = floor[:6]
            whole, idle, least_output, others, met_step, num_like_own = floor[6:]
            if num_tokens >= context:
                continue
            node = compute[0]
            if context != last_context:
                last_context, expected = context, expected_output_tokens(request, node, mean_output)
                total_tokens, own = num_tokens + math.ceil(expected), num_tokens + expected / 2
            if total_tokens > held or (excluded and node.node_id in excluded):
                continue
            cached = pullable
            if cached_ids and node.node_id in cached_ids:
                cached = max(pullable, self.most_cached(node))
            start = compute[2] + (num_tokens - cached) * compute[3]
            if least_start < start:
                start = least_start
            met = others if expected >= least_output else 0.0
            step = met_step + read_token * own * num_like_own if met else idle + read_token * own
            decode = expected * step
            share = node.prompt_share
            if share:
                decode = seconds_beside_prompts(expected, step, whole, prompt_share=share)
            if met:
                longer, arithmetic = read_token * own, by_math + math_token * own
                decode += met * (longer if longer < arithmetic else arithmetic) * expected
            entries.append((False, (start + decode) * SLACK, NODE, index))
        return entries

    def _sorted(self, prefillers: Sequence[ComputeFloor]) -> list[PrefillerFloor]:
        request, now_seconds, cached_ids = self._request, self._snapshot.now_seconds, self._cached_ids
        num_tokens, excluded = request.num_prompt_tokens, request.excluded_node_ids
        num_pairs = num_tokens * num_tokens
        floors: list[PrefillerFloor] = []
        for index, floor in enumerate(prefillers):
            node, max_tokens, of_pass, of_token, of_pair, least, num_stalled, _, _ = floor
            if num_tokens > max_tokens or (excluded and node.node_id in excluded):
                continue
            if cached_ids and node.node_id in cached_ids:
                own = floor.seconds(self.most_cached(node), num_tokens)
            else:
                own = of_pass + num_tokens * of_token + num_pairs * of_pair
                if least > own:
                    own = least
            if num_stalled or node.queue.seconds:
                queue, imposed = floor.waits(own, num_tokens, now_seconds)
                floors.append((queue + own + imposed, queue, imposed, index, floor))
            else:
                floors.append((own, 0.0, 0.0, index, floor))
        floors.sort()
        return floors
