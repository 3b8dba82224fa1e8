"""`baton plan --nodes`."""

from __future__ import annotations

import pytest

from baton.capacity.hardware import PRESETS
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.snapshot import PlacementRequest
from baton.cli.cluster.role_plan import cluster_table, plan_node, plan_states, planned_shape, sentences
from baton.errors import NotFoundError
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.wire.quantities import duration_from_seconds, profile_to_proto, shape_to_proto

REQUEST = PlacementRequest(8192, 256)


def _state(
    node_id: str, role: node_pb2.NodeRole, hardware: str, *, engine: str = "mlx"
) -> router_service_pb2.NodeState:
    node = node_pb2.NodeDescription(
        node_id=node_id,
        role=role,
        engine=engine,
        device="cuda:0" if engine == "torch" else "gpu",
        model_id="llama",
        model_shape=shape_to_proto(LLAMA_3_1_8B),
        profile=profile_to_proto(PRESETS[hardware].profile(), source="declared"),
        block_count=1000,
        block_token_count=16,
    )
    state = router_service_pb2.NodeState(node=node)
    state.load.system.available_memory_byte_count = 10**11
    return state


def _pair(link_bytes_per_second: float) -> list[router_service_pb2.NodeState]:
    spark = _state("spark", node_pb2.NODE_ROLE_PREFILL, "dgx-spark")
    ultra = _state("ultra", node_pb2.NODE_ROLE_DECODE, "m3-ultra")
    ultra.links.add(from_node_id="spark", bytes_per_second=link_bytes_per_second, round_trip=duration_from_seconds(0.0))
    return [spark, ultra]


def test_the_table_says_who_does_what_and_changes_with_the_link() -> None:
    """Over 10 Gb/s the pair works together; over 8 Mb/s each would serve alone."""
    for rate, roles in ((1.25e9, ["prefill", "decode"]), (1e6, ["both"] * 2)):
        states = _pair(rate)

        table = cluster_table(states, plan_states(states, LLAMA_3_1_8B, REQUEST), LLAMA_3_1_8B)

        cells = {str(column.header): list(column.cells) for column in table.columns}
        assert cells["plan"] == roles
        assert cells["may"] == ["prefill", "decode"]


def test_the_sentences_compare_the_pair_with_the_best_single_node() -> None:
    """And say that no node will do, where none does."""
    states = _pair(1.25e9)
    lines = sentences(plan_states(states, LLAMA_3_1_8B, REQUEST), LLAMA_3_1_8B, "llama", REQUEST)
    states[0].load.is_draining = states[1].load.is_draining = True
    none = sentences(plan_states(states, LLAMA_3_1_8B, REQUEST), LLAMA_3_1_8B, "llama", REQUEST)

    assert "spark prefills, ultra decodes" in lines[1]
    assert lines[2].startswith("Without a second node: ultra alone")
    assert len(lines) == 3
    assert none[1] == "No node can serve 8192 prompt tokens and 256 new ones."


def test_the_plan_is_set_beside_what_the_roles_of_today_give() -> None:
    """Where the pair is dearer than one of it alone, both are told, and each with its time."""
    states = _pair(1e6)
    states[0].node.profile.CopyFrom(profile_to_proto(PRESETS["h200"].profile(), source="declared"))
    lines = sentences(plan_states(states, LLAMA_3_1_8B, REQUEST), LLAMA_3_1_8B, "llama", REQUEST)

    assert "spark alone, first token after" in lines[1]
    assert lines[2].startswith("As nodes are pinned: ultra alone, first token after")
    states.pop()
    alone = sentences(plan_states(states, LLAMA_3_1_8B, REQUEST), LLAMA_3_1_8B, "llama", REQUEST)
    assert alone[2] == "As nodes are pinned, none can serve it."


def test_free_memory_counts_where_the_engine_computes_in_it() -> None:
    """Of a GPU's own memory that counts which its driver says is free; without a driver, what its worker holds."""
    held = LLAMA_3_1_8B.weight_bytes + 16_000 * LLAMA_3_1_8B.kv_bytes_per_token

    assert plan_node(_state("a", node_pb2.NODE_ROLE_DECODE, "m3-ultra")).usable_bytes == held + 10**11
    gpu = _state("a", node_pb2.NODE_ROLE_DECODE, "a100", engine="torch")
    assert plan_node(gpu).usable_bytes == held
    gpu.load.system.available_gpu_memory_byte_count = 5 * 10**9
    assert plan_node(gpu).usable_bytes == held + 5 * 10**9


def test_the_context_is_the_models_own_where_memory_holds_more() -> None:
    """Tokens of all sequences stand beside it; what a small pool announces today bounds no plan."""
    states = _pair(1.25e9)
    for state in states:
        state.node.model_shape.max_context_token_count = 4096
        state.node.model_context_token_count = 131_072
    shape = planned_shape(states, "llama")
    table = cluster_table(states, plan_states(states, shape, REQUEST), shape)

    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["context"] == ["131072"] * 2
    assert cells["tokens"] == ["778 k"] * 2


def test_models_are_found_by_served_name_or_as_reference() -> None:
    """The message lists the references."""
    states = _pair(1e9)

    assert planned_shape(states, "llama") == planned_shape([], "llama-3.1-8b") == LLAMA_3_1_8B
    with pytest.raises(NotFoundError, match=r"llama-3\.1-70b"):
        planned_shape(states, "gpt-9")
