"""Registered nodes: epochs, freshness, progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.errors import SupersededError
from baton.router.nodes import LinkMeasurement, NodeTable
from router.samples import DGX, IDLE, MAC, Clock, busy_report

BUSY = busy_report(step_count=7, num_running=1)


def table(clock: Clock) -> NodeTable:
    """Return an empty table."""
    return NodeTable(clock, stuck_seconds=20.0, silent_seconds=5.0)


@pytest.mark.parametrize("epoch", [0, 2, 2**63 - 1])
def test_no_epoch_takes_a_name_from_a_process_that_is_heard(epoch: int) -> None:
    """Any process can choose a great one; the name is free again when its owner is silent."""
    clock = Clock()
    nodes = table(clock)
    first = nodes.register(MAC)

    with pytest.raises(SupersededError, match=MAC.address):
        nodes.register(replace(MAC, epoch=epoch))
    assert nodes.get("mac") is first
    clock.seconds += 1.6
    assert nodes.register(replace(MAC, epoch=epoch)) is nodes.get("mac")
    with pytest.raises(SupersededError):
        nodes.register(MAC)


def test_a_process_that_drains_leaves_its_name_to_the_next() -> None:
    """An update starts the next process before the last one has ended."""
    nodes = table(Clock())
    nodes.report(nodes.register(MAC), replace(IDLE, is_draining=True))

    later = nodes.register(replace(MAC, epoch=2))

    assert nodes.get("mac") is later


def test_the_end_of_a_replaced_registration_leaves_the_later_one() -> None:
    """The old stream's end must not remove the new process."""
    nodes = table(Clock())
    earlier = nodes.register(MAC)
    later = nodes.register(MAC)

    assert not nodes.remove(earlier)
    assert nodes.get("mac") is later
    assert nodes.remove(later)
    assert nodes.get("mac") is None


def test_nodes_of_a_model_are_sorted() -> None:
    """Other models' nodes are left out; order does not depend on who came first."""
    nodes = table(Clock())
    for description in (MAC, DGX, replace(DGX, node_id="other", model_id="qwen")):
        nodes.register(description)

    assert [node.description.node_id for node in nodes.of_model("llama")] == ["dgx", "mac"]


def test_a_draining_node_is_unusable() -> None:
    """It says so in its report."""
    nodes = table(Clock())
    node = nodes.register(MAC)

    nodes.report(node, replace(IDLE, is_draining=True))

    assert nodes.unusable_reason(node) == "draining"


def test_a_node_that_falls_silent_among_others_is_done_without() -> None:
    """After three reports that did not come: it may be cut off. Where all are silent, the router is to blame."""
    clock = Clock()
    nodes = table(clock)
    silent, other = nodes.register(MAC), nodes.register(replace(MAC, node_id="other"))
    prefill = nodes.register(DGX)
    clock.seconds += 1.6
    assert not any(map(nodes.unusable_reason, (silent, other, prefill)))

    nodes.report(other, IDLE)

    assert nodes.unusable_reason(silent) == "no report for 1.6 s"
    assert nodes.usable_until_seconds(silent) < clock()
    assert not nodes.unusable_reason(other)
    assert not nodes.unusable_reason(prefill), "nobody else prefills"


def test_a_silent_node_is_unusable_until_it_reports() -> None:
    """A stopped process keeps its connection for a while, but not its reports."""
    clock = Clock()
    nodes = table(clock)
    node = nodes.register(MAC)
    assert nodes.unusable_reason(node) == ""

    clock.seconds += 6.0
    assert nodes.unusable_reason(node) == "no report for 6.0 s"

    nodes.report(node, IDLE)
    assert nodes.unusable_reason(node) == ""


def test_a_node_with_work_whose_steps_stand_still_is_stuck() -> None:
    """A hung engine still reports; only the step count tells. One step makes it usable again."""
    clock = Clock()
    nodes = table(clock)
    node = nodes.register(MAC)
    for _ in range(7):
        nodes.report(node, BUSY)
        clock.seconds += 4.0
    assert nodes.unusable_reason(node).startswith("stuck")

    nodes.report(node, replace(BUSY, step_count=8))
    assert nodes.unusable_reason(node) == ""


def test_an_idle_node_is_never_stuck() -> None:
    """Without work no step is due; the time counts from when work came."""
    clock = Clock()
    nodes = table(clock)
    node = nodes.register(MAC)
    for _ in range(10):
        nodes.report(node, IDLE)
        clock.seconds += 4.0
    nodes.report(node, replace(BUSY, step_count=0))

    assert nodes.unusable_reason(node) == ""


def test_a_request_that_waits_for_kv_from_elsewhere_needs_no_step() -> None:
    """Waiting without prompt tokens to compute is not work for this engine."""
    clock = Clock()
    nodes = table(clock)
    node = nodes.register(MAC)
    for _ in range(10):
        nodes.report(node, busy_report(num_waiting=1))
        clock.seconds += 4.0
    nodes.report(node, busy_report(num_waiting=1))

    assert nodes.unusable_reason(node) == ""


def test_links_of_nodes_that_have_gone_go_when_others_come() -> None:
    """Pods that come and go have new names each time."""
    nodes = table(Clock())
    mac, gone = nodes.register(MAC), nodes.register(DGX)
    nodes.measure_link(mac, LinkMeasurement("dgx", 1e9, 0.001))
    nodes.remove(gone)
    nodes.register(replace(DGX, node_id="dgx-2"))

    nodes.measure_link(mac, LinkMeasurement("dgx-2", 1e9, 0.001))

    assert list(mac.links) == ["dgx-2"]
