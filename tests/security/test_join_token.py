"""The token by which a machine joins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from baton.errors import ConfigurationError
from baton.security.authority import check_intact, create_authority
from baton.security.join_token import JoinToken, create_secret, first_certificate, parse_join_token, read_secret


def _swapped(text: str) -> str:
    """Return a text with a letter near its end, within the signature, changed."""
    place = len(text) - 20
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def test_a_token_comes_back_as_it_was() -> None:
    """Secret and authority travel in one string; neither shows in a log."""
    authority = create_authority(datetime.now(UTC), timedelta(days=1)).certificate
    token = JoinToken(create_secret(), authority)

    assert parse_join_token(f" {token.text}\n") == token
    assert token.secret not in repr(token)


@pytest.mark.parametrize("text", ["", "baton1.short.AAAA", f"baton2.{'s' * 32}.AAAA", f"baton1.{'s' * 32}.", "x"])
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    """The message says what a token looks like."""
    with pytest.raises(ConfigurationError, match=r"baton1\.SECRET\.AUTHORITY") as caught:
        parse_join_token(text)

    assert "s" * 32 not in caught.value.message


def test_a_token_whose_authority_is_damaged_is_refused() -> None:
    """It would be believed by nobody later."""
    with pytest.raises(ConfigurationError, match=r"no base64.*copy all of what `baton authority token` prints"):
        parse_join_token(f"baton1.{'s' * 32}.%%%%%")


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text[:200] + text[212:], _swapped])
def test_a_certificate_that_has_lost_or_changed_letters_is_refused(damage: Callable[[str], str]) -> None:
    """It still is base64, and no router would ever be believed by it."""
    authority = create_authority(datetime.now(UTC), timedelta(days=1)).certificate
    secret, _, encoded = JoinToken("s" * 32, authority).text.rpartition(".")
    check_intact(parse_join_token(f"{secret}.{encoded}").authority)

    with pytest.raises(ConfigurationError, match="a part of it is missing or changed"):
        check_intact(parse_join_token(f"{secret}.{damage(encoded)}").authority)


def test_secrets_must_be_long(tmp_path: Path) -> None:
    """What can be guessed is none."""
    path = tmp_path / "join.secret"
    path.write_text("password")
    with pytest.raises(ConfigurationError, match="32 to 256"):
        read_secret(path)
    path.write_text("k" * 32 + "\n")

    assert read_secret(path) == "k" * 32


def test_of_several_certificates_the_first_is_taken() -> None:
    """It is the one whose key signs."""
    first, second = (create_authority(datetime.now(UTC), timedelta(days=1)).certificate for _ in range(2))

    assert first_certificate(first + second) == first
    with pytest.raises(ConfigurationError, match="PEM"):
        first_certificate(b"")
