"""Nodes and clusters for tests of placement."""

from __future__ import annotations

from baton.capacity import cost
from baton.capacity.cost import ModelShape, NodeProfile, PromptQueue
from baton.capacity.hardware import PRESETS
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeLoad, NodeRole, NodeSnapshot

TEN_GIGABIT = Link(1.25e9, 0.0)
GIGABIT = Link(1.25e8, 0.0)


def pipeline_seconds(num_groups: int, compute_seconds: float, send_seconds: float) -> float:
    """Return the time until the last group of layers has arrived, where each is sent while the next is computed.

    With per-group c and s: c + (G - 1) · max(c, s) + s. Handing K and V over before the layer's attention and MLP hides
    more than that, so it is an upper bound. Both times are of all groups, of which there is 1 or more. Source:
    docs/placement.md, measured within 1 % on shaped 1, 5 and 10 Gb/s links.
    """
    compute, send = compute_seconds / num_groups, send_seconds / num_groups
    return compute + (num_groups - 1) * max(compute, send) + send


def node(
    node_id: str,
    role: NodeRole,
    hardware: str,
    *,
    shape: ModelShape = LLAMA_3_1_8B,
    load: NodeLoad | None = None,
    num_blocks: int = 100_000,
    unusable_reason: str = "",
) -> NodeSnapshot:
    """Return a node with declared speed, idle unless a load is given."""
    return NodeSnapshot(
        node_id=node_id,
        role=role,
        shape=shape,
        profile=PRESETS[hardware].profile(),
        num_blocks=num_blocks,
        block_tokens=16,
        max_batch_size=8,
        load=load or NodeLoad(num_free_blocks=num_blocks),
        unusable_reason=unusable_reason,
        queue=queue_of(load or NodeLoad(), shape, PRESETS[hardware].profile()),
    )


def queue_of(load: NodeLoad, shape: ModelShape, profile: NodeProfile) -> PromptQueue:
    """Return a queue of equally long prompts, as many as wait, one at least."""
    num_prompts = max(1, load.num_waiting)
    total = cost.backlog_seconds(shape, profile, load.num_pending_prompt_tokens, num_prompts)
    return PromptQueue.of([total / num_prompts] * num_prompts)


def pair(link: Link = TEN_GIGABIT) -> ClusterSnapshot:
    """Return the seed's pair: prefill on a DGX Spark, decode on an M3 Ultra."""
    return ClusterSnapshot((node("dgx", "prefill", "dgx-spark"), node("mac", "decode", "m3-ultra")), default_link=link)
