"""Nodes, reports and a clock for tests of the router."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.capacity.hardware import PRESETS
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.snapshot import NodeLoad
from baton.internal.v1 import node_pb2
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec
from baton.router.nodes import LoadReport, NodeDescription, Outcome
from baton.wire.kv import abilities_to_proto, layout_to_proto
from baton.wire.node_roles import role_to_proto
from baton.wire.quantities import profile_to_proto, shape_to_proto

MODEL = "llama"
LAYOUT = KvLayout(MODEL, "a" * 32, "", (LayerSpec(8, 128, 128),) * 32, KvDtype.BFLOAT16)

MAC = NodeDescription(
    node_id="mac",
    epoch=1,
    role="decode",
    address="127.0.0.1:7101",
    model_id=MODEL,
    layout=LAYOUT,
    shape=LLAMA_3_1_8B,
    profile=PRESETS["m3-ultra"].profile(),
    num_blocks=10_000,
    block_tokens=16,
    max_batch_size=8,
)
DGX = replace(
    MAC,
    node_id="dgx",
    role="prefill",
    address="127.0.0.1:7102",
    profile=PRESETS["dgx-spark"].profile(),
)
IDLE = LoadReport(
    load=NodeLoad(num_free_blocks=10_000),
    step_count=0,
    is_draining=False,
)
OUTCOME = Outcome(
    placement_id="p",
    decode_node_id="mac",
    prefill_node_id="dgx",
    prefill_cached_tokens=0,
    kv_bytes=8192 * LLAMA_3_1_8B.kv_bytes_per_token,
    kv_frames=32,
    queue_seconds=0.0,
    prefill_seconds=1.5,
    transfer_seconds=0.86,
    exposed_seconds=0.03,
    decode_seconds=1.0,
    num_completion_tokens=0,
    num_preemptions=0,
    fallback_reason="",
)


@dataclass
class Clock:
    """Time that passes when the test says so."""

    seconds: float = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def busy_report(step_count: int = 0, **work: float) -> LoadReport:
    """Return the report of a node with some work, named as in `NodeLoad`."""
    return replace(IDLE, load=replace(IDLE.load, **work), step_count=step_count)  # type: ignore[arg-type]


def description_to_proto(description: NodeDescription) -> node_pb2.NodeDescription:
    """Return the message of a description."""
    return node_pb2.NodeDescription(
        node_id=description.node_id,
        epoch=description.epoch,
        role=role_to_proto(description.role),
        address=description.address,
        fast_address=description.fast_address,
        engine="mock",
        device="mock",
        model_id=description.model_id,
        kv_layout=layout_to_proto(description.layout),
        model_shape=shape_to_proto(description.shape),
        profile=profile_to_proto(description.profile, source="declared"),
        block_count=description.num_blocks,
        block_token_count=description.block_tokens,
        max_batch_size=description.max_batch_size,
        eos_token_ids=(2,),
        wire_abilities=abilities_to_proto(description.wire_abilities),
        is_cache_private=not description.serves_blocks,
        adapters=[node_pb2.Adapter(name=each.name, digest=each.digest) for each in description.adapters],
        max_step_token_count=description.max_step_tokens,
        device_id=description.device_id,
    )
