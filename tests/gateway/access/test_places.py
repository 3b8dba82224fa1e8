"""Places of generations in work."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from baton.errors import InvalidFieldError, OverloadedError
from baton.gateway.access.admission import Admission, RequestContext
from baton.gateway.access.api_keys import ApiKey
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS, KeyLimits
from baton.gateway.access.tenants import Places
from gateway.access.test_key_limits import Clock

A, B = ApiKey("a", is_admin=False), ApiKey("b", is_admin=False)


def fill(stack: ExitStack, places: Places, key: ApiKey) -> int:
    """Let a tenant take whatever it gets, 100 at most; return how many that is."""
    for count in range(100):
        try:
            stack.enter_context(places.hold(key))
        except OverloadedError:
            return count
    return 100


@pytest.mark.parametrize(("weight", "expected"), [(1, 5), (3, 8)])
def test_a_tenant_finds_its_share_where_another_has_taken_all(weight: int, expected: int) -> None:
    """And that one, which may have all while it is alone, gets none until it is below its own."""
    places = Places(10, 0, Clock())
    with ExitStack() as flood, ExitStack() as light:
        assert fill(flood, places, A) == 10
        assert fill(light, places, B._replace(weight=weight)) == expected
        flood.pop_all().close()
        assert fill(flood, places, A) == -(-10 // (1 + weight))


def test_many_tenants_together_take_twice_the_places_at_most() -> None:
    """However many come."""
    places = Places(10, 0, Clock())
    with ExitStack() as stack:
        taken = [fill(stack, places, ApiKey(str(number), is_admin=False)) for number in range(30)]

    assert sum(taken) == 20
    assert places.num_taken == 0


def test_a_tenant_that_has_nothing_in_work_has_no_share() -> None:
    """Of two that have any, each has half."""
    places, c = Places(10, 0, Clock()), ApiKey("c", is_admin=False)
    with places.hold(A):
        pass
    with ExitStack() as flood, ExitStack() as light:
        assert fill(flood, places, B) == 10
        assert fill(light, places, c) == 5


def test_every_generation_of_a_request_takes_a_place() -> None:
    """What cannot be had at all is no overload, and says so."""
    places = Places(10, 4, Clock())
    with places.hold(A) as add:
        add(3)
        with pytest.raises(OverloadedError, match="4 requests of this API key"), places.hold(A):
            pass
        with pytest.raises(InvalidFieldError, match="at most 4"):
            add(5)
    with places.hold(A):
        assert places.num_taken == 1


def test_a_refusal_says_when_a_place_is_to_be_expected() -> None:
    """By how long places were held of late, and how many are to be given back first."""
    clock = Clock()
    places = Places(4, 0, clock)
    for _ in range(100):
        with places.hold(A):
            clock.seconds += 8.0
    with ExitStack() as flood:
        fill(flood, places, A)
        with pytest.raises(OverloadedError) as refusal:
            flood.enter_context(places.hold(A))

    assert refusal.value.metadata[RETRY_AFTER_SECONDS] == "2"


def test_models_have_places_of_their_own() -> None:
    """One that has taken all of its own takes none of another's; names that nobody serves share theirs, and what a key

    may have in work at once is for all models together.
    """
    clock = Clock()
    roots = {"hot": "hot", "alias": "hot", "cold": "cold"}
    key_places = Places(1000, 6, clock)
    admission = Admission(lambda _model: Places(4, 0, clock), key_places, None, lambda name: roots.get(name, ""))

    def take(stack: ExitStack, model: str, key: ApiKey = A) -> str:
        try:
            stack.enter_context(admission.slot(RequestContext(model=model, key=key)))
        except OverloadedError as error:
            return error.reason
        return ""

    with ExitStack() as stack:
        assert [take(stack, name) for name in ("hot", "hot", "alias", "alias")] == [""] * 4
        assert take(stack, "hot") == take(stack, "alias") == "QUEUE_FULL"
        assert [take(stack, name) for name in ("cold", "cold")] == ["", ""]
        assert take(stack, "cold") == "KEY_CONCURRENCY"
        assert [take(stack, name, B) for name in "uvwxyz"] == [*[""] * 4, "QUEUE_FULL", "QUEUE_FULL"]
        assert take(stack, "cold", B) == ""
    assert key_places.num_taken == 0


@pytest.mark.parametrize("num_generations", [1, 3])
def test_a_request_has_a_place_for_each_of_its_choices(num_generations: int) -> None:
    """Its model's and its key's, from when their number is known until it has ended."""
    key_places = Places(10, 0, Clock())
    admission = Admission(lambda _model: Places(10, 0, Clock()), key_places, None, lambda name: name)
    context = RequestContext(model="hot", key=A)
    with admission.slot(context):
        assert context.begin is not None
        context.begin(num_generations, 100)
        assert (admission.places_of("hot").num_taken, key_places.num_taken) == (num_generations, num_generations)

    assert (admission.places_of("hot").num_taken, key_places.num_taken) == (0, 0)


def test_what_is_taken_and_given_back_is_told() -> None:
    """All choices of a request, also where more of them are refused."""
    told: list[int] = []
    places = Places(4, 0, Clock(), told.append)
    with places.hold(A) as add:
        add(2)
        with pytest.raises(OverloadedError):
            add(2)

    assert told == [1, 2, -3]


def test_one_long_generation_counts_for_a_sixteenth_of_the_expectation() -> None:
    """A second before any has ended, and 17 s more by one that took 272 s longer."""
    clock = Clock()
    places = Places(1, 0, clock)
    with places.hold(A):
        clock.seconds += 1.0 + 272.0
    with places.hold(A), pytest.raises(OverloadedError) as refusal, places.hold(A):
        pass

    assert refusal.value.metadata[RETRY_AFTER_SECONDS] == "18"


@pytest.mark.parametrize("num_generations", [1, 3])
def test_a_request_is_charged_its_generations_and_all_tokens(num_generations: int) -> None:
    """The prompt's when they are known, the output's when there is no more; nothing more is asked of who is over."""
    limits = KeyLimits(requests_per_minute=50, tokens_per_minute=1000, clock=Clock())
    admission = Admission(lambda _model: Places(10, 0, Clock()), Places(10, 0, Clock()), limits, lambda name: name)

    def ask(num_prompt_tokens: int, num_completion_tokens: int) -> None:
        context = RequestContext(key=A)
        with admission.slot(context):
            context.begin(num_generations, num_prompt_tokens)
            context.num_completion_tokens = num_completion_tokens

    def left() -> tuple[float, float]:
        return tuple(limits._bucket("a", kind).left for kind in ("requests", "tokens"))  # type: ignore[return-value]

    ask(100, 50)
    assert left() == (50 - num_generations, 850)
    ask(700, 500)
    assert left() == (50 - 2 * num_generations, -350)
    with pytest.raises(OverloadedError, match="1000 tokens per minute"):
        ask(1, 1)
    assert left() == (50 - 2 * num_generations, -350)


def test_whose_tokens_others_have_used_up_meanwhile_does_not_begin() -> None:
    """Its body may have taken long to come."""
    limits = KeyLimits(requests_per_minute=5, tokens_per_minute=1000, clock=Clock())
    admission = Admission(lambda _model: Places(10, 0, Clock()), Places(10, 0, Clock()), limits, lambda name: name)
    context = RequestContext(key=A)
    with admission.slot(context):
        limits.spend("a", num_tokens=1000)
        with pytest.raises(OverloadedError, match="tokens"):
            context.begin(1, 10)


@pytest.mark.parametrize(("num_places", "max_of_key", "most"), [(3, 8, 3), (8, 3, 3), (3, 0, 3)])
def test_no_request_has_more_places_than_there_are(num_places: int, max_of_key: int, most: int) -> None:
    """However few are taken: that is no overload, which would end."""
    places = Places(num_places, max_of_key, Clock())
    with places.hold(A) as add:
        with pytest.raises(InvalidFieldError):
            add(most + 1)
        add(most - 1)
        assert places.num_taken == most


def test_a_key_that_is_full_is_told_until_when() -> None:
    """By how many of its own have to end first: of four, one."""
    clock = Clock()
    places = Places(100, 4, clock)
    for _ in range(100):
        with places.hold(A):
            clock.seconds += 20.0
    with ExitStack() as stack:
        for key in (A, A, A, A, B):
            stack.enter_context(places.hold(key))
        with pytest.raises(OverloadedError) as refusal:
            stack.enter_context(places.hold(A))

    assert refusal.value.reason == "KEY_CONCURRENCY"
    assert refusal.value.metadata[RETRY_AFTER_SECONDS] == "5"
