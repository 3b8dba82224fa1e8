"""Clusters of 0 to 16 nodes, with requests that wait, run, have run and have failed, as the page /ui is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict

from baton.gateway.access.api_keys import ApiKey
from baton.gateway.access.tenants import Places
from baton.gateway.api.ui.state import state_document
from baton.gateway.generation.observation import JournalEntry
from baton.gateway.generation.requests import GenerationResult
from baton.gateway.models.catalog import ListedModel
from baton.gateway.models.status import ModelStatus
from baton.internal.v1 import model_service_pb2 as models
from baton.internal.v1 import node_pb2
from baton.internal.v1 import router_service_pb2 as router
from baton.v1 import generation_pb2 as generation
from baton.wire.quantities import duration_from_seconds

NOW_SECONDS = 100.0
MODEL = "llama-3.1-8b-instruct"
MODEL_ROW = ListedModel(MODEL, MODEL, False, "", ModelStatus("serving"), 8192, None)
LAYERS = 32
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that a stranger's node may have."""


def picture(num_nodes: int, *, name: str = "", are_workers: bool = False) -> Mapping[str, Any]:
    """Return the state of a cluster: every second node prefills; one drains, one is silent, one link is slow.

    Args:
        num_nodes: How many.
        name: The request whose frames are wanted.
        are_workers: Whether all may play any part.
    """
    states = list(_states(num_nodes))
    for state in states if are_workers else ():
        state.node.role = node_pb2.NODE_ROLE_WORKER
    places = Places(256, 0, lambda: NOW_SECONDS)
    with places.hold(ApiKey("me", is_admin=False)) as add:
        add(2)
        document = state_document(
            [(MODEL_ROW, places)], "0.1.0", states, list(_entries(states)), NOW_SECONDS, name=name
        )
    return {**document, "planner": MessageToDict(_planner(), preserving_proto_field_name=True)}


def _planner() -> models.ListModelsResponse:
    """Return a model in each stage that can be seen, one of them with a name that is markup."""
    answer = models.ListModelsResponse(
        machine_free_byte_counts={"mac": 61_000_000_000, "spark": 12_000_000_000},
        plan=["no other plan is worth its move", f"{HOSTILE}: mac (decode), spark (prefill); 16.1 GB each"],
    )
    for name, stage, done in (
        (HOSTILE, models.MODEL_STAGE_SERVING, 100),
        ("org/fetched", models.MODEL_STAGE_FETCHING, 42),
        ("org/stored", models.MODEL_STAGE_STORED, 100),
        ("org/failed", models.MODEL_STAGE_FAILED, 0),
    ):
        problem = "mac: its worker ended with status 2: no such dtype" if stage == models.MODEL_STAGE_FAILED else ""
        state = answer.models.add(stage=stage, problem=problem, serving_count=int(done == 100))
        state.desired.CopyFrom(models.DesiredModel(name=name, source=name, is_on_demand=name == "org/stored"))
        machine = models.MachineModel(name=name, stage=stage, done_byte_count=done, total_byte_count=100)
        machine.held_byte_count = 17_000_000_000 * (stage == models.MODEL_STAGE_SERVING)
        state.machines["mac"].CopyFrom(machine)
    return answer


def _states(num_nodes: int) -> Iterator[router.NodeState]:
    ids = [
        f"prefill-dgx-spark-{index // 2}" if index % 2 else f"decode-m3-ultra-{index // 2}"
        for index in range(num_nodes)
    ]
    for index, node_id in enumerate(ids):
        is_prefill = index % 2 == 1
        role = node_pb2.NODE_ROLE_PREFILL if is_prefill else node_pb2.NODE_ROLE_DECODE
        role = node_pb2.NODE_ROLE_WORKER if num_nodes == 1 else role
        node = node_pb2.NodeDescription(
            node_id=node_id,
            role=role,
            model_id=MODEL,
            engine="torch" if is_prefill else "mlx",
            device="cuda:0 NVIDIA GB10" if is_prefill else "apple M3 Ultra",
            profile=node_pb2.NodeProfile(prefill_flops=62e12, decode_bytes_per_second=7.4e11, source="measured"),
            block_count=4096,
            block_token_count=16,
        )
        load = node_pb2.LoadReport(
            running_request_count=index % 4,
            waiting_request_count=3 if index == 1 else 0,
            pending_prompt_token_count=18_400 if index == 1 else 0,
            free_block_count=4096 - 256 * index,
            is_draining=index == 4,
            system=node_pb2.SystemSample(power_watts=87.4, temperature_celsius=61, gpu_usage=0.93),
        )
        silence = "no report for 7.2 s" if index == 7 else ""
        others = ids if not is_prefill else []
        yield router.NodeState(
            node=node,
            load=load,
            links=[_link(each, index, place) for place, each in enumerate(others) if each != node_id],
            unusable_reason="draining" if index == 4 else silence,
            report_age=duration_from_seconds(7.2 if silence else 0.4),
        )


def _link(from_node_id: str, receiver: int, place: int) -> node_pb2.LinkMeasurement:
    rate = 1.1e8 if (receiver, place) == (2, 1) else 1.05e9 + 1e7 * place
    return node_pb2.LinkMeasurement(
        from_node_id=from_node_id, bytes_per_second=rate, round_trip=duration_from_seconds(597e-6)
    )


def _entries(states: list[router.NodeState]) -> Iterator[JournalEntry]:
    """Yield one request of each kind, then many that are done; none where no node is."""
    if not states:
        return
    decode = states[0].node.node_id
    prefill = states[1].node.node_id if len(states) > 1 else ""
    yield _running("placing-1", None)
    yield _running("prefilling-1", _placement(decode, prefill))
    yield _running("decoding-1", _placement(decode, prefill), first_token_seconds=99.0)
    for index in range(12):
        yield _done(f"chatcmpl-{index}", _placement(decode, prefill), index)
    failed = _running("failed-1", _placement(decode, prefill))
    failed.ended_seconds, failed.error = 98.0, "decode-m3-ultra-0: no room for 131072 tokens, the pool has 65536 in all"
    yield failed


def _placement(decode: str, prefill: str) -> router.Placement:
    terms = (
        {"queue": 0.012, "prefill": 0.44, "transfer": 0.35, "exposed": 0.02, "join": 0.018}
        if prefill
        else {"prefill": 0.9}
    )
    start = sum(seconds for term, seconds in terms.items() if term != "transfer")
    estimate = router.CostEstimate(
        **{f"{term}_seconds": seconds for term, seconds in terms.items()},
        start_seconds=start,
        time_to_first_token_seconds=start,
        step_seconds=0.02,
        expected_output_token_count=64,
        imposed_seconds=0.001,
    )
    return router.Placement(placement_id="p", decode_node_id=decode, prefill_node_id=prefill, estimate=estimate)


def _running(name: str, placement: router.Placement | None, first_token_seconds: float | None = None) -> JournalEntry:
    return JournalEntry(
        name,
        "/v1/chat/completions",
        num_prompt_tokens=1412,
        began_at=1_790_000_000.0,
        arrival_seconds=98.4,
        request=None,
        generation=None,
        placement=placement,
        num_output_tokens=20 if first_token_seconds is not None else 0,
        first_token_seconds=first_token_seconds,
    )


def _done(name: str, placement: router.Placement, index: int) -> JournalEntry:
    entry = _running(name, placement, first_token_seconds=98.95)
    entry.ended_seconds = 100.0 + index / 100
    summary = generation.PlacementSummary(
        decode_node_id=placement.decode_node_id,
        prefill_node_id=placement.prefill_node_id or placement.decode_node_id,
        completion_token_count=49,
    )
    measured = {"queue": 0.01, "prefill": 0.52, "decode": 1.0}
    if placement.prefill_node_id:
        measured |= {"transfer": 0.4, "exposed": 0.03, "join": 0.01}
        summary.kv_byte_count = 185_000_000
        summary.kv_timeline.CopyFrom(_timeline())
    for term, seconds in measured.items():
        getattr(summary, f"{term}_duration").CopyFrom(duration_from_seconds(seconds))
    entry.result = GenerationResult(
        reason="stop",
        num_prompt_tokens=1412,
        num_cached_tokens=256,
        num_completion_tokens=49,
        seed=1,
        num_attempts=1,
        summary=summary,
    )
    return entry


def _timeline() -> generation.KvTimeline:
    layer_micros = 520_000 // LAYERS
    frames = [
        generation.KvFrameTiming(
            layer_begin=layer,
            layer_count=1,
            token_begin=256,
            token_count=1156,
            byte_count=5_780_000,
            ready_micros=(layer + 1) * layer_micros,
            arrived_micros=(layer + 1) * layer_micros + 12_500,
        )
        for layer in range(LAYERS)
    ]
    frames[-1].arrived_micros = 550_000
    return generation.KvTimeline(frames=frames, computed_micros=LAYERS * layer_micros)
