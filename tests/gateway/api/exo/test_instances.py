"""Pins, and how they end."""

from __future__ import annotations

import pytest

from baton.capacity.snapshot import NodePair
from baton.errors import OverloadedError
from baton.gateway.api.exo.instances import GRACE_SECONDS, MAX_INSTANCES, Instance, InstanceLink, Instances


def instance(name: str = "i", model: str = "m", decode: str = "d", prefill: str = "p") -> Instance:
    """Return an instance."""
    return Instance(name, model, NodePair(decode, prefill))


class Clock:
    """Time that passes when the test says so."""

    seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def test_pins_are_those_of_a_model_until_they_are_lifted() -> None:
    """In the order in which they were made."""
    instances = Instances(Clock())
    instances.add(instance("a"))
    instances.add(instance("b", prefill=""))
    instances.add(instance("c", model="other"))

    assert instances.pins("m") == (NodePair("d", "p"), NodePair("d", ""))
    assert instances.remove("a")
    assert not instances.remove("a")
    assert instances.pins("m") == (NodePair("d", ""),)


def test_an_instance_goes_when_its_node_has_been_away() -> None:
    """Not at once: the router may only have started again."""
    clock = Clock()
    instances = Instances(clock)
    instances.add(instance())
    instances.note_nodes({"d"})
    clock.seconds = GRACE_SECONDS - 1
    instances.note_nodes({"d"})
    assert instances.get("i") is not None

    clock.seconds = GRACE_SECONDS
    instances.note_nodes({"d"})

    assert instances.all() == []


def test_a_node_that_came_back_keeps_its_instance() -> None:
    """The time away is counted anew."""
    clock = Clock()
    instances = Instances(clock)
    instances.add(instance())
    for seconds, nodes in ((0.0, {"d"}), (5.0, {"d", "p"}), (12.0, {"d"}), (21.0, {"d"})):
        clock.seconds = seconds
        instances.note_nodes(nodes)

    assert instances.get("i") is not None


def test_there_are_never_too_many() -> None:
    """One that is made again counts once."""
    instances = Instances(Clock())
    for index in range(MAX_INSTANCES):
        instances.add(instance(str(index)))
    instances.add(instance("0"))

    with pytest.raises(OverloadedError):
        instances.add(instance("one more"))


def test_a_linked_instance_decodes_what_the_others_node_computes() -> None:
    """The one that computes takes no requests of its own; a node linked to itself computes alone."""
    instances = Instances(Clock())
    for each in (instance("a", prefill="p"), instance("b", decode="e", prefill=""), instance("c", prefill="q")):
        instances.add(each)
    instances.link(InstanceLink("l", ("a",), ("b",)))
    assert instances.pins("m") == (NodePair("e", "p"), NodePair("d", "q"))

    assert instances.unlink("l")
    assert not instances.unlink("l")
    instances.link(InstanceLink("l", ("b",), ("b",)))
    assert instances.pins("m") == (NodePair("d", "p"), NodePair("e", ""), NodePair("d", "q"))


def test_a_link_ends_with_the_first_of_its_instances() -> None:
    """What is left of them is pinned as before."""
    instances = Instances(Clock())
    instances.add(instance("a"))
    instances.add(instance("b", prefill=""))
    instances.link(InstanceLink("l", ("a",), ("b",)))

    instances.remove("a")

    assert instances.links() == []
    assert instances.pins("m") == (NodePair("d", ""),)


def test_links_take_room_beside_instances() -> None:
    """The router takes so many pins, and no more."""
    instances = Instances(Clock())
    names = tuple(str(index) for index in range(8))
    for name in names:
        instances.add(instance(name))
    instances.link(InstanceLink("l", names[:7], names[:7]))

    with pytest.raises(OverloadedError):
        instances.link(InstanceLink("one more", names[:2], names[:4]))
