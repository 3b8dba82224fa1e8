"""Which node should do what."""

from __future__ import annotations

from baton.capacity.hardware import PRESETS
from baton.capacity.planner import PASS_TOKENS, PlanNode, plan_cluster
from baton.capacity.reference_models import LLAMA_3_1_8B, LLAMA_3_1_70B
from baton.capacity.snapshot import Link, NodeRole, PlacementRequest
from capacity.samples import GIGABIT, TEN_GIGABIT

LONG = PlacementRequest(8192, 256)
SLOW = Link(1e6, 0.0)


def _node(
    node_id: str, hardware: str, *, gigabytes: int = 128, role: NodeRole = "decode", reason: str = ""
) -> PlanNode:
    return PlanNode(node_id, role, PRESETS[hardware].profile(), gigabytes * 10**9, reason)


SPARK, ULTRA = _node("spark", "dgx-spark"), _node("ultra", "m3-ultra", role="prefill")


def _roles(nodes: list[PlanNode], link: Link = TEN_GIGABIT) -> dict[str, str]:
    plan = plan_cluster(nodes, LLAMA_3_1_8B, LONG, {}, link)
    return {part.node_id: part.role for part in plan.parts}


def test_arithmetic_prefills_and_bandwidth_decodes_whatever_they_do_today() -> None:
    """The DGX Spark has four times the FLOP/s, the M3 Ultra three times the bytes/s."""
    plan = plan_cluster([ULTRA, SPARK], LLAMA_3_1_8B, LONG, {}, TEN_GIGABIT)

    assert [part.role for part in plan.parts] == ["decode", "prefill"]
    assert plan.choice is not None
    assert plan.alone is not None
    assert (plan.choice.prefill_node_id, plan.choice.decode_node_id) == ("spark", "ultra")
    assert plan.choice.rank < plan.alone.rank


def test_a_plan_follows_the_nodes_that_come_and_go() -> None:
    """One node does both; a second one takes the part that it is better at; a draining one none."""
    assert _roles([ULTRA]) == {"ultra": "both"}
    assert _roles([SPARK]) == {"spark": "both"}
    assert _roles([SPARK, ULTRA]) == {"spark": "prefill", "ultra": "decode"}
    assert _roles([_node("spark", "dgx-spark", reason="draining"), ULTRA]) == {"spark": "none", "ultra": "both"}
    assert _roles([]) == {}


def test_over_a_slow_link_one_node_alone_is_sooner() -> None:
    """A gigabyte of KV over a gigabit: the Mac alone is sooner, helped best by the Spark; over less, not even that."""
    assert _roles([SPARK, ULTRA], GIGABIT) == {"spark": "prefill", "ultra": "both"}
    assert _roles([SPARK, ULTRA], SLOW) == {"spark": "both", "ultra": "both"}
    assert _roles([SPARK, ULTRA], TEN_GIGABIT) == {"spark": "prefill", "ultra": "decode"}


def test_a_measured_link_counts_in_both_directions() -> None:
    """Nobody measures the way back before the roles are changed."""
    plan = plan_cluster([ULTRA, SPARK], LLAMA_3_1_8B, LONG, {("ultra", "spark"): SLOW}, TEN_GIGABIT)

    assert plan.choice is not None
    assert plan.choice.is_local


def test_a_node_whose_memory_is_too_small_is_told_so() -> None:
    """70 B parameters in 16 bits are 141 GB; what is left beside them is room for KV."""
    small, large = _node("small", "dgx-spark", gigabytes=128), _node("large", "m3-ultra", gigabytes=512)

    plan = plan_cluster([small, large], LLAMA_3_1_70B, LONG, {}, TEN_GIGABIT)

    assert [part.role for part in plan.parts] == ["none", "both"]
    assert plan.parts[0].reason == "weights do not fit: 11.3 GB are missing"
    assert plan.parts[0].context_tokens == 0
    room = 512 * 10**9 - LLAMA_3_1_70B.weight_bytes - LLAMA_3_1_70B.workspace_bytes(PASS_TOKENS)
    assert plan.parts[1].context_tokens == room // LLAMA_3_1_70B.kv_bytes_per_token


def test_a_node_without_room_for_one_request_serves_nothing() -> None:
    """Weights alone are not enough."""
    plan = plan_cluster([_node("tight", "m2", gigabytes=16)], LLAMA_3_1_8B, LONG, {}, TEN_GIGABIT)

    assert plan.choice is None
    assert plan.parts[0].reason == "8448 tokens of KV do not fit"


def test_further_nodes_take_the_part_that_they_are_better_at() -> None:
    """Beside the best pair, a second Spark prefills and a second Mac decodes."""
    roles = _roles([SPARK, ULTRA, _node("spark-2", "dgx-spark"), _node("ultra-2", "m3-ultra")])

    assert roles == {"spark": "prefill", "ultra": "decode", "spark-2": "prefill", "ultra-2": "decode"}
