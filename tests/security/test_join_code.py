"""Codes of few words: what a guess costs, and what who listens or stands between can do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from baton.errors import AuthenticationError, ConfigurationError, OverloadedError
from baton.security.join_code import (
    LIFETIME,
    MAX_GUESSES,
    CodeExchange,
    Invitations,
    JoinCode,
    known_words,
    parse_code,
)

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
SAID = b"mac"


def proved(code: JoinCode, words: str) -> tuple[bytes, bytes]:
    """Return what a router expects of a machine that holds a code, and what one shows that has these words."""
    router, machine = CodeExchange(code.words, SAID, is_router=True), CodeExchange(words, SAID, is_router=False)
    return router.take(machine.element), machine.take(router.element)


def test_words_are_told_apart_by_four_letters() -> None:
    """2,048 of them: three are 33 bits."""
    assert len({word[:4] for word in known_words()}) == len(known_words()) == 2048


def test_a_code_is_read_as_people_type_it() -> None:
    """In capitals, with blanks."""
    code, _ = Invitations().create(NOW)

    assert parse_code(f" {code.number} {code.words.replace('-', '  ').upper()} ") == code
    assert parse_code(str(code)) == code


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("7-orbit-candy", "expected a number and 3 words, as 7-orbit"),
        ("orbit-candy-maple-7", "expected a number"),
        ("7-orbitt-candy-maple", "'orbitt' is no word of a code; did you mean orbit"),
    ],
)
def test_a_slip_is_told_before_it_costs_a_guess(text: str, told: str) -> None:
    """The message says what was expected, or which word is near."""
    with pytest.raises(ConfigurationError, match=told):
        parse_code(text)


def test_who_knows_the_words_proves_it_and_reads_what_is_sealed() -> None:
    """Both compute one key."""
    router, machine = CodeExchange("a-b-c", SAID, is_router=True), CodeExchange("a-b-c", SAID, is_router=False)

    assert router.take(machine.element) == machine.take(router.element)
    assert machine.unseal(router.seal(b"token")) == b"token"


def test_who_listens_learns_nothing_even_with_the_words() -> None:
    """Of a transcript the token cannot be opened, nor a guess be tried: the key takes a secret of either side."""
    router, machine = CodeExchange("a-b-c", SAID, is_router=True), CodeExchange("a-b-c", SAID, is_router=False)
    proof = machine.take(router.element)
    router.take(machine.element)
    sealed = router.seal(b"token")

    for words in ("a-b-c", "a-b-d"):
        for heard, is_router in ((router.element, False), (machine.element, True)):
            listener = CodeExchange(words, SAID, is_router=is_router)
            assert listener.take(heard) != proof
            with pytest.raises(AuthenticationError):
                listener.unseal(sealed)


def test_who_stands_between_cannot_alter_anything() -> None:
    """Neither what a machine says of itself, nor an element, nor the outcome."""
    router = CodeExchange("a-b-c", b"mallory", is_router=True)
    machine = CodeExchange("a-b-c", SAID, is_router=False)
    assert router.take(machine.element) != machine.take(router.element)

    router, machine = CodeExchange("a-b-c", SAID, is_router=True), CodeExchange("a-b-c", SAID, is_router=False)
    for element in (b"", machine.element[:-1], b"A" + bytes(32), b"A\x01" + bytes(31), router.element):
        with pytest.raises(AuthenticationError, match="the code is wrong, or no longer holds"):
            router.take(element)

    router, machine = CodeExchange("a-b-c", SAID, is_router=True), CodeExchange("a-b-c", SAID, is_router=False)
    router.take(machine.element)
    machine.take(router.element)
    sealed = router.seal(b"token")
    with pytest.raises(AuthenticationError):
        machine.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_five_wrong_guesses_burn_a_code() -> None:
    """The right one is told the same afterwards as any other, and as of a code that never was."""
    invitations = Invitations()
    code, _ = invitations.create(NOW)
    texts = set()
    for _ in range(MAX_GUESSES):
        with pytest.raises(AuthenticationError) as refused:
            invitations.check(code.number, *proved(code, "no-such-words"))
        texts.add(refused.value.message)

    words = invitations.words_of(code.number)
    assert words != code.words
    for number in (code.number, code.number + 1):
        with pytest.raises(AuthenticationError) as refused:
            invitations.check(number, *proved(code, code.words))
        texts.add(refused.value.message)
    assert len(texts) == 1
    assert "burnt by 5 wrong guesses" in invitations.problem(code.number, "mac", NOW)


def test_four_wrong_guesses_do_not() -> None:
    """Who mistypes may try again."""
    invitations = Invitations()
    code, _ = invitations.create(NOW)
    for _ in range(MAX_GUESSES - 1):
        with pytest.raises(AuthenticationError):
            invitations.check(code.number, *proved(code, "no-such-words"))

    invitations.check(code.number, *proved(code, code.words))

    assert invitations.problem(code.number, "mac", NOW) == ""


def test_a_code_is_for_one_machine_and_a_quarter_of_an_hour() -> None:
    """Its holder is told which it was; others are not."""
    invitations = Invitations()
    first, expires_at = invitations.create(NOW)
    second, _ = invitations.create(NOW)
    invitations.use(first.number, "mac")

    assert expires_at == NOW + LIFETIME
    assert "used by mac: `baton invite`" in invitations.problem(first.number, "mac", NOW)
    assert invitations.problem(second.number, "mac", expires_at - timedelta(seconds=1)) == ""
    assert "expired at 03:19 UTC: `baton invite`" in invitations.problem(second.number, "mac", expires_at)


def test_codes_are_bounded_and_those_that_are_over_make_room() -> None:
    """Numbers are not given twice."""
    invitations = Invitations()
    numbers = {invitations.create(NOW)[0].number for _ in range(64)}
    with pytest.raises(OverloadedError, match="64 codes hold"):
        invitations.create(NOW)

    later, _ = invitations.create(NOW + LIFETIME)

    assert later.number not in numbers
    assert len(numbers) == 64


def test_a_machine_whose_name_another_has_is_told_so() -> None:
    """The code is not used up: with another name it holds."""
    invitations = Invitations(lambda: {"mac"})
    code, _ = invitations.create(NOW)

    assert "is called mac already" in invitations.problem(code.number, "mac", NOW)
    assert invitations.problem(code.number, "other", NOW) == ""
