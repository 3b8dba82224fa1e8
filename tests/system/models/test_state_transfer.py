"""The states of a hybrid model over a slow link: bytes and seconds as the router plans them, and as they came.

`make matrix`, as root, with iproute2: torch computes prompts at the far end of a link, MLX decodes at the near one. The
results keep the last run of each link.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import grpc
import pytest

from baton.demo import checkpoint_dir
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.node_pb2 import NODE_ROLE_DECODE, NODE_ROLE_PREFILL
from baton.internal.v1.router_service_pb2 import Candidate, PlacementPin, PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import PlacementSummary
from bench.links.hosts import hosted_cluster
from bench.links.network import network_of
from bench.local_cluster import MODEL, generate_request, real_node
from bench.results_file import describe_machine, write_results
from house.repository import ROOT

pytestmark = [
    pytest.mark.skipif(
        "BATON_MATRIX" not in os.environ or sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("tc"),
        reason="takes a minute and root: run `make matrix`",
    ),
    pytest.mark.timeout(600),
]
FOLDER = checkpoint_dir("baton-demo-hybrid")
LINK_BITS_PER_SECOND = (8e6, 32e6)
"""A megabyte a second, which all prompts wait for, and four, behind whose computation most of a long one hides."""
PROMPT_TOKENS = (48, 256, 1024, 2048)
NUM_ROUNDS = 3
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
"""Of measured to planned seconds: what is asked of transfers elsewhere (bench/METHODOLOGY.md)."""
STATE_BYTES = 6 * 4 * (4 * 64 * 64 + 3 * 512)
"""Of six layers, in float32: four heads of 64 x 64, and three positions of the convolution's 512 channels."""
KV_LAYERS = (3, 7)
_CALL_SECONDS = 120.0
_RESULTS = ROOT / "bench" / "results" / "state_transfer.json"


class Sample(NamedTuple):
    """K and V and states of one prompt, planned and measured."""

    planned_kv_bytes: int
    planned_state_bytes: int
    planned_state_seconds: float
    planned_seconds: float
    """For which the link is busy with both."""
    planned_exposed_seconds: float
    kv_bytes: int
    state_bytes: int
    state_seconds: float
    """For which frames of states were on their way."""
    seconds: float
    """For which any were."""
    exposed_seconds: float


class Nodes(NamedTuple):
    """The services of a cluster, and the two nodes that serve a prompt."""

    router: RouterServiceStub
    decode: DecodeServiceStub
    pin: PlacementPin
    bits_per_second: float


@pytest.fixture(scope="module", params=LINK_BITS_PER_SECOND, ids=lambda rate: f"{rate / 1e6:.0f} Mb/s")
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Return torch behind a link, whose rate has been measured, and MLX."""
    pytest.importorskip("mlx_lm")
    hosted = (
        (real_node("decode", "mlx"), 0),
        (real_node("prefill", "torch"), 1),
    )
    with network_of() as network:
        network.set_rate(1, request.param)
        with hosted_cluster(network, FOLDER, hosted) as (hosts, states):
            of_role = {state.node.role: state.node for state in states}
            near, far = of_role[NODE_ROLE_DECODE], of_role[NODE_ROLE_PREFILL]
            pin = PlacementPin(decode_node_id=near.node_id, prefill_node_id=far.node_id)
            with grpc.insecure_channel(near.address) as channel:
                yield Nodes(hosts.router, DecodeServiceStub(channel), pin, request.param)  # type: ignore[no-untyped-call]


def test_states_take_the_bytes_and_seconds_that_were_planned(nodes: Nodes) -> None:
    """Bytes exactly, seconds as closely as is asked of transfers, whether states are most of a prompt's or few."""
    seeds = count(1)
    _generate(nodes, PROMPT_TOKENS[0], next(seeds))  # makes the connection

    rows = {length: [_generate(nodes, length, next(seeds)) for _ in range(NUM_ROUNDS)] for length in PROMPT_TOKENS}

    _report(nodes.bits_per_second, rows)
    ratios = {}
    for length, samples in rows.items():
        assert {(each.planned_state_bytes, each.state_bytes) for each in samples} == {(STATE_BYTES, STATE_BYTES)}
        assert all(each.planned_kv_bytes == each.kv_bytes for each in samples)
        ratios[length, "states"] = median(each.state_seconds / each.planned_state_seconds for each in samples)
        ratios[length, "all"] = median(each.seconds / each.planned_seconds for each in samples)
    assert {case: ratio for case, ratio in ratios.items() if not LEAST_RATIO <= ratio <= MOST_RATIO} == {}


def _generate(nodes: Nodes, num_tokens: int, seed: int) -> Sample:
    """Return what a prompt of random tokens, of which no cache has any, was planned to take, and took."""
    place = PlaceRequest(
        request_id=f"states-{seed}",
        model_id=MODEL,
        prompt_token_count=num_tokens,
        max_token_count=2,
        bypass_prefix_cache=True,
        pins=[nodes.pin],
    )
    answer = nodes.router.Place(place, timeout=_CALL_SECONDS)
    rng = random.Random(seed)
    prompt = [rng.randrange(3, 250) for _ in range(num_tokens)]
    fields = {"placement": answer.placement, "bypass_prefix_cache": True, "wants_kv_timeline": True}
    request = generate_request(place.request_id, prompt, 2, **fields)
    messages = list(nodes.decode.Generate(request, timeout=_CALL_SECONDS))
    summary = messages[-1].finished.summary
    assert not summary.fallback_reason
    return _sample(answer.candidates[0], summary)


def _sample(choice: Candidate, summary: PlacementSummary) -> Sample:
    """A frame is on its way once it is ready and the one before it has arrived."""
    wire, estimate, timeline = choice.wire, choice.estimate, summary.kv_timeline
    arrived = 0
    num_bytes, seconds = [0, 0], [0.0, 0.0]
    for frame in timeline.frames:
        kind = frame.layer_begin not in KV_LAYERS  # False: K and V, True: states
        num_bytes[kind] += frame.byte_count
        seconds[kind] += (frame.arrived_micros - max(arrived, frame.ready_micros)) / 1e6
        arrived = frame.arrived_micros
    return Sample(
        planned_kv_bytes=wire.key_byte_count + wire.value_byte_count,
        planned_state_bytes=wire.state_byte_count,
        planned_state_seconds=wire.state_seconds,
        planned_seconds=estimate.transfer_seconds,
        planned_exposed_seconds=estimate.exposed_seconds,
        kv_bytes=num_bytes[False],
        state_bytes=num_bytes[True],
        state_seconds=seconds[True],
        seconds=sum(seconds),
        exposed_seconds=summary.exposed_duration.ToNanoseconds() / 1e9,
    )


def _report(bits_per_second: float, rows: dict[int, list[Sample]]) -> None:
    """Print a line for each length, and write the samples."""
    print(f"\n{bits_per_second / 1e6:.0f} Mb/s; bytes, and seconds planned > measured (measured / planned)")
    for length, samples in rows.items():
        sizes = f"K and V {samples[0].kv_bytes:9,d}  states {samples[0].state_bytes:9,d}"
        told = [
            f"{name} {_pair(samples, f'planned_{field}', field)}"
            for name, field in (("states", "state_seconds"), ("all", "seconds"), ("exposed", "exposed_seconds"))
        ]
        print(f"{length:5d} tokens  {sizes}  {'  '.join(told)}", flush=True)
    row: dict[str, Any] = {
        "bits_per_second": bits_per_second,
        "machine": describe_machine(),
        "samples": {str(length): [each._asdict() for each in samples] for length, samples in rows.items()},
    }
    known = json.loads(_RESULTS.read_text())["links"] if _RESULTS.exists() else []
    kept = {each["bits_per_second"]: each for each in (*known, row)}
    write_results(_RESULTS, {"links": [kept[rate] for rate in sorted(kept)]})


def _pair(samples: Sequence[Sample], planned: str, measured: str) -> str:
    medians = [median(getattr(each, field) for each in samples) for field in (planned, measured)]
    return f"{medians[0]:.3f} > {medians[1]:.3f} ({medians[1] / medians[0]:.2f})"
