"""Two nodes that play any part: each for the other, in parts that flip under load, and either alone."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from baton.capacity.cost import ModelShape
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.router_service_pb2 import PlacementPin, PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv.kv_format import KvDtype
from baton.v1.generation_pb2 import KvTransport, PlacementSummary, SamplingParameters
from checkpoints import checkpoint
from system.client import Ask, Outcome, open_grpc
from system.cluster import Cluster
from system.faults.scenario import ASKS, FaultFree, begin, caught, check_equal, uncached
from system.plan import MODEL_NAME

BOTH = ("worker-0", "worker-1")
PROMPT = [3 + position * 7 % 250 for position in range(100)]
NUM_TOKENS = 12

_ASKS = tuple(replace(ask, num_tokens=80) for ask in (*ASKS, Ask(tuple(range(3, 503)) * 3, 80)))
_DEATHS = [(BOTH[1], signal.SIGKILL)]
if os.environ.get("BATON_MATRIX"):
    _DEATHS = [(name, number) for name in BOTH for number in (signal.SIGKILL, signal.SIGTERM)]

_NUM_CLIENTS = 6
_NUM_LATEST = 12
"""Requests by which it is judged who plays which part."""
_MOST_SECONDS = 1.0
"""From the turn of speeds until the first request from which on most are placed in the new parts."""
_MOST_OUTCOMES = 200
"""Requests after which the parts must have flipped."""


def _speeds(shape: ModelShape) -> dict[str, str]:
    """Return what BATON_MOCK_SPEEDS says of each node: one prefills in a quarter, the other decodes in a quarter.

    That is 20 ms and 80 ms for 400 tokens, 5 ms and 20 ms for a step; afterwards each does in eight times the time what
    it had done in a quarter.
    """
    flop, read = shape.prefill_flop(0, 400), shape.weight_bytes
    return {
        BOTH[0]: f"{flop / 0.02},{read / 0.02} {flop / 0.16},{read / 0.02}",
        BOTH[1]: f"{flop / 0.08},{read / 0.005} {flop / 0.08},{read / 0.04}",
    }


@pytest.fixture(scope="module")
def workers() -> Iterator[Cluster]:
    """Run two workers that stand for unlike machines, the first for the one that belongs to prefill."""
    model_dir, settings = checkpoint("llama"), {"worker": {"mock_hardware": "changing", "dtype": "bfloat16"}}
    cluster = Cluster(model_dir, prefill=(), decode=(), worker=("mock", "mock"), settings=settings)
    shape = read_checkpoint(model_dir).model_info("", KvDtype.BFLOAT16, engine="mock", device="").shape
    path = os.pathsep.join([str(Path(__file__).parent / "mock_speed"), os.environ.get("PYTHONPATH", "")])
    for name, speeds in _speeds(shape).items():
        process = cluster.processes[name]
        process.environment = {**process.environment, "PYTHONPATH": path, "BATON_MOCK_SPEEDS": speeds}
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole(workers: Cluster) -> Sequence[Outcome]:
    """Return the right outcomes of _ASKS."""
    fault_free = FaultFree()
    return [fault_free.outcome(workers, ask) for ask in _ASKS]


def _generate(cluster: Cluster, decode: str, prefill: str) -> tuple[list[int], PlacementSummary]:
    """Generate on one node, the prompt computed on another; empty: on the same."""
    name = f"{decode}-{prefill or 'alone'}"
    with grpc.insecure_channel(cluster.address_of("router")) as channel:
        pin = PlacementPin(decode_node_id=decode, prefill_node_id=prefill)
        place = PlaceRequest(
            request_id=name, model_id=MODEL_NAME, prompt_token_count=len(PROMPT), max_token_count=NUM_TOKENS, pins=[pin]
        )
        placement = RouterServiceStub(channel).Place(place, timeout=20).placement  # type: ignore[no-untyped-call]
    request = DecodeServiceGenerateRequest(
        request_id=name,
        attempt=1,
        model_id=MODEL_NAME,
        prompt_token_ids=PROMPT,
        sampling=SamplingParameters(temperature=0, ignore_eos=True, max_token_count=NUM_TOKENS),
        placement=placement,
        bypass_prefix_cache=True,
    )
    tokens: list[int] = []
    with grpc.insecure_channel(cluster.address_of(decode)) as channel:
        for answer in DecodeServiceStub(channel).Generate(request, timeout=60):  # type: ignore[no-untyped-call]
            tokens += answer.tokens.token_ids
            if answer.HasField("finished"):
                return tokens, answer.finished.summary
    raise AssertionError(f"no end after {tokens}")


def test_each_prefills_for_the_other_token_exactly(workers: Cluster) -> None:
    """K and V travel both ways, neither by gRPC's library, and the tokens are those of a node that computes alone."""
    expected, alone = _generate(workers, BOTH[0], "")
    assert alone.kv_byte_count == 0

    for decode, prefill in (BOTH, BOTH[::-1]):
        tokens, summary = _generate(workers, decode, prefill)

        assert tokens == expected
        assert (summary.prefill_node_id, summary.fallback_reason) == (prefill, "")
        assert summary.kv_byte_count > 0
        assert summary.kv_transport in (KvTransport.KV_TRANSPORT_SHARED, KvTransport.KV_TRANSPORT_FAST)


@pytest.mark.parametrize(("victim", "number"), _DEATHS)
def test_either_carries_on_alone(
    workers: Cluster, whole: Sequence[Outcome], victim: str, number: signal.Signals
) -> None:
    """Running streams go on with the right tokens, later requests are served, and who comes back gets work again."""
    workers.heal()
    (survivor,) = {*BOTH} - {victim}
    streams, _ = caught(workers, victim, lambda: begin(workers, [uncached(ask) for ask in _ASKS]))
    workers.kill(victim, number)

    check_equal(streams, whole)
    workers.wait_until(lambda: set(workers.nodes()) == {survivor}, "the router knows one node")
    check_equal(begin(workers, _ASKS), whole)
    workers.restart(victim)
    streams, _ = caught(workers, victim, lambda: begin(workers, [uncached(ask) for ask in _ASKS]))
    check_equal(streams, whole)


@pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="in virtual time in tests/router/test_workers.py")
def test_parts_flip_under_load(workers: Cluster) -> None:
    """When speeds turn, each takes over the other's part: no request fails, no token is wrong, nothing is loaded.

    Both begin anew: what was learnt of a part that a node did not play is forgotten in minutes (`HALF_LIFE_SECONDS`).
    """
    workers.heal()
    for name in BOTH:
        workers.restart(name)
    epochs = {name: workers.node(name).node.epoch for name in BOTH}
    prompts = [tuple((number + place) % 500 + 3 for place in range(400)) for number in range(_NUM_CLIENTS)]
    expected = [open_grpc(workers, Ask(prompt, 5)).outcome().token_ids for prompt in prompts]
    outcomes, is_over = list[tuple[int, float, Outcome]](), threading.Event()

    def ask(client: int) -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            asked_at = time.monotonic()
            stream = open_grpc(workers, Ask(prompts[client], 5, cache_salt=f"{client}-{number}"))
            outcomes.append((client, asked_at, stream.outcome()))

    def are(prefill: str, decode: str) -> Callable[[], bool]:
        return lambda: _share(outcomes, prefill, decode) >= 0.75

    clients = [threading.Thread(target=ask, args=(client,)) for client in range(_NUM_CLIENTS)]
    for client in clients:
        client.start()
    try:
        workers.wait_until(are(*BOTH), "each plays the part that it belongs to")
        num_before, turned_at = len(outcomes), time.monotonic()
        for name in BOTH:
            workers.kill(name, signal.SIGUSR1)
        workers.wait_until(are(*BOTH[::-1]), "the parts have flipped")
        num_after = len(outcomes) - num_before
    finally:
        is_over.set()
        for client in clients:
            client.join()
    seconds = _flipped_at(outcomes, turned_at) - turned_at
    print(
        f"\nparts flipped {seconds:.2f} s after speeds had turned; {num_after} requests ended until most were new ones"
    )

    assert [outcome.error for _, _, outcome in outcomes if outcome.error] == []
    assert all(outcome.token_ids == expected[client] for client, _, outcome in outcomes)
    assert num_after <= _MOST_OUTCOMES
    assert seconds < _MOST_SECONDS
    assert {name: workers.node(name).node.epoch for name in BOTH} == epochs


def _share(outcomes: Sequence[tuple[int, float, Outcome]], prefill: str, decode: str) -> float:
    """Return how many of the latest requests were computed by one node and decoded by another."""
    latest = [outcome.placement for *_, outcome in outcomes[-_NUM_LATEST:]]
    return sum((each.prefill_node_id, each.decode_node_id) == (prefill, decode) for each in latest) / _NUM_LATEST


def _flipped_at(outcomes: Sequence[tuple[int, float, Outcome]], turned_at: float) -> float:
    """Return when the first request was asked from which on most were placed in the new parts."""
    asked = sorted((each for each in outcomes if each[1] > turned_at), key=lambda each: each[1])
    ends = (number for number in range(len(asked)) if _share(asked[: number + _NUM_LATEST], *BOTH[::-1]) >= 0.75)
    return asked[next(ends)][1]
