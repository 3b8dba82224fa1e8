"""Whose turn it is where several tenants ask: passes and places in the batch are shared by their weights.

Each tenant has a counter of what was done for it, over its weight; the tenant whose counter is least comes first, and
within a tenant the order is that of queue keys. So nothing stands idle while anybody waits, and one tenant alone is
served as if there were none. One that comes back begins where the others are, less what it asks for: it has its first
prompt at once, however much they have waiting, and nothing is saved up in silence.

Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, section 4 (counters of virtual tokens);
Goyal et al., Start-time Fair Queueing, SIGCOMM 1996, section 2 (the clock).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from heapq import heapify, heappop, heapreplace

from baton.engine.request import EngineRequest, Purpose
from baton.engine.sequence import Sequence, SequenceQueues

OUTPUT_COST = 2
"""An output token counts as so many positions of a prompt."""
FIRST_OUTPUT_TOKENS = 128.0
"""Length of an output as long as none has ended."""
MAX_TENANTS = 1024
"""Tenants remembered; the one that has not asked for longest goes first."""
MAX_PASSES_BETWEEN = 8
"""Passes of all between two that are one suspect's alone: it must come to its end, however many tenants there are."""


class TenantTurns:
    """Counts what tenants get.

    Invariants: `_clock` never falls: it is the greatest counter that a tenant had when something was done for it. Of
    tenants that have waited in `queues` none has a counter further below it than its costliest sequence.
    """

    def __init__(self, queues: SequenceQueues) -> None:
        self._queues = queues
        self._counters = OrderedDict[str, float]()
        self._clock = 0.0
        self._mean_output_tokens = FIRST_OUTPUT_TOKENS

    def arrive(self, sequence: Sequence) -> None:
        """Note a sequence that is going to wait."""
        tenant, earliest = sequence.request.tenant, self._clock - self._cost(sequence)
        self._counters[tenant] = max(self._counters.pop(tenant, earliest), earliest)
        if len(self._counters) > MAX_TENANTS:
            self._counters.popitem(last=False)

    def has_share_of(self, request: EngineRequest, num_places: int) -> bool:
        """Return whether a tenant has less than its share of so many places to wait, of which nobody has twice all."""
        own, queues = self._queues.waiting_of.get(request.tenant, ()), self._queues.waiting_of
        others = sum(each[0].request.tenant_weight for name, each in queues.items() if name != request.tenant)
        share = num_places * request.tenant_weight / (request.tenant_weight + others)
        return bool(others) and len(own) < share and len(self._queues.waiting) < 2 * num_places

    def begin(self, sequence: Sequence) -> None:
        """Charge a sequence that gets its first blocks with the output that is to be expected."""
        sequence.num_charged_outputs = self._expected_output_tokens(sequence)
        self.charge(sequence, OUTPUT_COST * sequence.num_charged_outputs)

    def charge(self, sequence: Sequence, num_tokens: float) -> None:
        """Charge the tenant of a sequence with positions that are computed."""
        tenant = sequence.request.tenant
        counter = self._counters.get(tenant, self._clock)
        self._clock = max(self._clock, counter)
        self._counters[tenant] = counter + num_tokens / sequence.request.tenant_weight

    def charge_others(self, sequence: Sequence) -> None:
        """Charge a sequence that has a pass for itself with the output that others lose by it."""
        others = sum(each.request.tenant != sequence.request.tenant for each in self._queues.running)
        self.charge(sequence, OUTPUT_COST * others)

    def passes_between(self, suspects: Iterable[Sequence]) -> int:
        """Return how many passes all share before one that is a suspect's alone: its tenant has its share, no more."""
        own = {each.request.tenant: each.request.tenant_weight for each in suspects}
        others = {each.request.tenant: each.request.tenant_weight for each in self._queues.running} | own
        share = sum(own.values()) / sum(others.values())
        return min(MAX_PASSES_BETWEEN, max(1, round(1 / share) - 1))

    def end(self, sequence: Sequence) -> None:
        """Settle what a sequence that had blocks was charged for its output."""
        if sequence.is_admitted and sequence.request.purpose is not Purpose.PREFILL:
            num_outputs = sequence.num_output_tokens - len(sequence.request.output_token_ids)
            self._mean_output_tokens += (num_outputs - self._mean_output_tokens) / 16
            self.charge(sequence, OUTPUT_COST * (num_outputs - sequence.num_charged_outputs))

    def waiting(self) -> Iterable[Sequence]:
        """Return the sequences that wait, in order of turns; they may go meanwhile."""
        queues = self._queues.waiting_of
        if len(queues) < 2:
            return self._queues.waiting[:]
        return self._merged({tenant: each[:] for tenant, each in queues.items()})

    def sorted(self, sequences: Seq[Sequence]) -> Seq[Sequence]:
        """Return sequences that are in order of queue keys in order of turns."""
        queues: dict[str, list[Sequence]] = {}
        for sequence in sequences:
            queues.setdefault(sequence.request.tenant, []).append(sequence)
        return sequences if len(queues) < 2 else list(self._merged(queues))

    def _merged(self, queues: Mapping[str, Seq[Sequence]]) -> Iterator[Sequence]:
        """Yield sequences in the order in which they come if each is done before the next; O(log tenants) for one."""
        heap = [(self._counters.get(name, self._clock), each[0].queue_key, 0, each) for name, each in queues.items()]
        heapify(heap)
        while heap:
            counter, _, index, queue = heap[0]
            yield (sequence := queue[index])
            if (following := index + 1) < len(queue):
                heapreplace(heap, (counter + self._cost(sequence), queue[following].queue_key, following, queue))
            else:
                heappop(heap)

    def _cost(self, sequence: Sequence) -> float:
        """Return by how much a sequence is going to raise its tenant's counter, cached positions included."""
        num_tokens = 0 if sequence.purpose is Purpose.RECEIVE else sequence.num_pending
        num_outputs = 0.0 if sequence.is_admitted else self._expected_output_tokens(sequence)
        return (num_tokens + OUTPUT_COST * num_outputs) / sequence.request.tenant_weight

    def _expected_output_tokens(self, sequence: Sequence) -> float:
        if sequence.purpose is Purpose.PREFILL:
            return 0.0
        return min(self._mean_output_tokens, sequence.num_outputs_left)
