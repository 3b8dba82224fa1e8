"""Refusals that the gateway remembers."""

from __future__ import annotations

import pytest

from baton.errors import OverloadedError
from baton.gateway.access.admission import LONGEST_SECONDS, MAX_KEYS, RecentRefusals


class Router:
    """A clock, and a router that refuses; counts how often it is asked."""

    def __init__(self, wait_seconds: float = 3.0) -> None:
        self.seconds = 1000.0
        self.num_asked = 0
        self.wait_seconds = wait_seconds
        self.refusals = RecentRefusals(lambda: self.seconds)

    def ask(
        self,
        *,
        key: str = "a",
        num_bytes: int = 100,
        has_objectives: bool = False,
        reason: str = "OVERLOADED",
        model: str = "",
    ) -> OverloadedError:
        """Return how a request is refused."""
        with pytest.raises(OverloadedError) as refusal:
            self._answer(key, num_bytes, reason, model, has_objectives=has_objectives)
        return refusal.value

    def _answer(self, key: str, num_bytes: int, reason: str, model: str, *, has_objectives: bool) -> None:
        metadata = {"retry_after_seconds": "3", "wait_seconds": str(self.wait_seconds)}
        with self.refusals.watch(key, num_bytes, model=model, has_objectives=has_objectives):
            self.num_asked += 1
            raise OverloadedError("later", reason=reason, metadata=metadata)


def test_what_was_just_refused_is_refused_again_without_asking() -> None:
    """With the time that is left."""
    router = Router()
    router.ask()
    router.seconds += 0.05

    again = router.ask(num_bytes=200)

    assert router.num_asked == 1
    assert (again.reason, again.metadata["retry_after_seconds"]) == ("OVERLOADED", "3")


@pytest.mark.parametrize("wait_seconds", [0.02, 3.0])
def test_the_router_is_asked_again_before_its_nodes_could_stand_idle(wait_seconds: float) -> None:
    """After half of the wait or a tenth of a second, also where refusals never cease in between."""
    router = Router(wait_seconds)
    router.ask()
    router.seconds += 0.9 * min(LONGEST_SECONDS, wait_seconds / 2)
    router.ask()
    router.seconds += 0.2 * min(LONGEST_SECONDS, wait_seconds / 2)

    router.ask()

    assert router.num_asked == 2


def test_others_are_not_refused_for_it() -> None:
    """Another key or model, a smaller request, and one with objectives of its own."""
    router = Router()
    router.ask()

    router.ask(key="b")
    router.ask(model="cold")
    router.ask(num_bytes=50, has_objectives=True)
    router.ask(num_bytes=50)

    assert router.num_asked == 5


def test_other_errors_are_not_remembered() -> None:
    """A full queue of a node says nothing of the next request."""
    router = Router()
    for _ in range(2):
        router.ask(reason="QUEUE_FULL")

    assert router.num_asked == 2


def test_keys_are_bounded() -> None:
    """The oldest refusal goes first."""
    router = Router()
    for number in range(MAX_KEYS + 1):
        router.ask(key=str(number))

    router.ask(key="0")

    assert router.num_asked == MAX_KEYS + 2


def test_a_key_that_is_refused_again_is_no_longer_the_oldest() -> None:
    """Else a flood of keys would push out those that ask all the time."""
    router = Router()
    router.ask(key="regular")
    for number in range(MAX_KEYS - 1):
        router.ask(key=str(number))
    router.seconds += 0.2
    router.ask(key="regular")
    router.ask(key="one more")
    num_asked = router.num_asked

    router.ask(key="regular")

    assert router.num_asked == num_asked


@pytest.mark.parametrize(("wait_seconds", "told"), [(0.2, "1"), (2.1, "3"), (30.0, "30")])
def test_what_is_left_of_a_wait_is_told_in_whole_seconds(wait_seconds: float, told: str) -> None:
    """One at least: nobody can wait for none."""
    router = Router(wait_seconds)
    router.ask()
    router.seconds += 0.01

    assert router.ask().metadata["retry_after_seconds"] == told
    assert router.num_asked == 1
