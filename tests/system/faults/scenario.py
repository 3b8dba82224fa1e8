"""The steps that the tests of faults have in common."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import grpc

from baton.internal.v1.cache_index_service_pb2 import LookupRequest
from baton.internal.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from system.client import Ask, Outcome, Stream, open_grpc, open_rest
from system.cluster import Cluster

NOTICED_SECONDS = 25.0
"""Within this, whoever depends on a process knows that it is gone: within seconds, on a machine that does much else."""

ASKS = tuple(
    Ask(tuple((7 * index + 5 * place) % 500 + 3 for place in range(40 + 30 * index)), 30, index % 2, seed=index)
    for index in range(4)
)
"""Two greedy and two sampled; on the slow model a second long."""
LASTING_ASKS = tuple(replace(ask, num_tokens=1000) for ask in ASKS)
"""The same, for what must still stream when something happens to it, however late that is: half a minute long."""
LONG_ASK = Ask(tuple(place % 500 + 3 for place in range(2000)), 20)
"""Its prefill takes more than a second there."""

_MOST_STARTS = 20
_salts = itertools.count(1)


class FaultFree:
    """What a cluster answers when nothing fails, asked once per request, one at a time."""

    def __init__(self) -> None:
        self._outcomes: dict[Ask, Outcome] = {}

    def outcome(self, cluster: Cluster, ask: Ask) -> Outcome:
        """Return the outcome of a request that ran alone."""
        if ask not in self._outcomes:
            outcome = open_grpc(cluster, ask).outcome()
            assert not outcome.error
            assert len(outcome.token_ids) == ask.num_tokens
            assert not outcome.placement.fallback_reason
            cluster.wait_idle(NOTICED_SECONDS)
            self._outcomes[ask] = outcome
        return self._outcomes[ask]


def uncached(ask: Ask) -> Ask:
    """Return the same request, for which no prefix cache holds anything."""
    return replace(ask, cache_salt=f"salt-{next(_salts)}")


def begin(cluster: Cluster, asks: Sequence[Ask]) -> list[Stream]:
    """Send requests by both APIs in turn, and return once all of them stream.

    One message each is waited for: a busy machine may send all the tokens that follow it in the next one.
    """
    streams = [(open_rest if index % 2 else open_grpc)(cluster, ask) for index, ask in enumerate(asks)]
    for stream in streams:
        stream.wait_for_chunks(1)
    return streams


def check_equal(streams: Sequence[Stream], expected: Sequence[Outcome]) -> None:
    """Check that clients get every token once and the right one."""
    for stream, whole in zip(streams, expected, strict=True):
        outcome = stream.outcome()
        assert not outcome.error
        assert outcome.text == whole.text
        assert outcome.token_ids in (whole.token_ids, [])  # REST shows no tokens
        assert outcome.finish_reason


def check_begins_equal(outcome: Outcome, whole: Outcome) -> None:
    """Check that of two outputs, of which one may be cut short anywhere, the longer one begins as the shorter one."""
    for token_id, expected in zip(outcome.token_ids, whole.token_ids, strict=False):
        assert token_id == expected
    end = whole.text.rstrip("\ufffd")  # half a character, where the other output has the rest of it
    assert outcome.text.startswith(end) or whole.text.startswith(outcome.text)


def caught(cluster: Cluster, role: str, start: Callable[[], Sequence[Stream]]) -> tuple[Sequence[Stream], str]:
    """Return requests under way, and a node of a role that holds one of them.

    Args:
        cluster: Where; idle.
        role: The beginning of the node's name.
        start: Sends the requests. On a busy machine they may be over before their node has reported them: then it is
            called again, when no node reports any more.
    """
    for _ in range(_MOST_STARTS):
        streams = start()
        while not all(stream.is_over for stream in streams):
            for name, state in cluster.nodes().items():
                if name.startswith(role) and state.load.running_request_count + state.load.waiting_request_count:
                    return streams, name
        cluster.wait_idle()
    raise AssertionError(f"no {role} node was busy while requests were under way")


def struck(
    cluster: Cluster, role: str, number: signal.Signals, is_hit: Callable[[Outcome, str], object]
) -> tuple[Outcome, str]:
    """Return what became of LONG_ASK, and the node to which a signal was sent while it worked on it.

    Args:
        cluster: Where; idle.
        role: The beginning of the node's name.
        number: The signal.
        is_hit: Tells from the outcome and the node's name whether it came in time. On a busy machine the node may be
            done before: then all is done again.
    """
    for _ in range(_MOST_STARTS):
        (stream,), victim = caught(cluster, role, lambda: [open_grpc(cluster, uncached(LONG_ASK))])
        cluster.kill(victim, number)
        outcome = stream.outcome(NOTICED_SECONDS)
        if outcome.error or is_hit(outcome, victim):
            return outcome, victim
        cluster.heal()
    raise AssertionError(f"{number.name} to the {role} node changed nothing")


def check_restart(cluster: Cluster, name: str, asks: Sequence[Ask], expected: Sequence[Outcome]) -> None:
    """Check that the cluster serves again after the restart of one process, with all the others as they were."""
    others = {other: cluster.pid_of(other) for other in cluster.processes if other != name}
    cluster.restart(name)

    check_equal(begin(cluster, asks), expected)
    assert all(cluster.processes[other].exit_status is None for other in others)
    assert {other: cluster.pid_of(other) for other in others} == others
    cluster.wait_idle(NOTICED_SECONDS)


@contextlib.contextmanager
def only_one_of_each(cluster: Cluster) -> Iterator[None]:
    """Take away all nodes but the first prefill and the first decode node."""
    spare = [name for name in cluster.node_names if not name.endswith("-0")]
    for name in spare:
        cluster.kill(name)

    def are_forgotten() -> bool:
        known = cluster.nodes()  # none of them if the router does not answer
        return bool(known) and known.keys().isdisjoint(spare)

    cluster.wait_until(are_forgotten, "the router forgot them")
    try:
        yield
    finally:
        for name in spare:
            cluster.start(name)


def holders_of(cluster: Cluster, ask: Ask) -> frozenset[str]:
    """Return the nodes of which the cache index knows that they hold the whole prompt, in full blocks."""
    node = cluster.node("decode-0").node
    root = root_hash(node.kv_layout.model_revision_digest, node.block_token_count, ask.cache_salt)
    hashes = block_hashes(root, ask.prompt_token_ids, node.block_token_count)
    with grpc.insecure_channel(cluster.address_of("cache-index")) as channel:
        stub = CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.Lookup(LookupRequest(block_hashes=join_hashes(hashes)), timeout=NOTICED_SECONDS)
    return frozenset(prefix.node_id for prefix in answer.prefixes if prefix.block_count == len(hashes))
