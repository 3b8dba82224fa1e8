"""The token by which a machine joins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from baton.errors import AuthenticationError, ConfigurationError
from baton.security.authority import check_intact, create_authority
from baton.security.join_token import (
    JoinPasses,
    JoinToken,
    create_pass,
    create_secret,
    first_certificate,
    parse_join_token,
    read_secret,
)


def _swapped(text: str) -> str:
    """Return a text with a letter near its end, within the signature, changed."""
    place = len(text) - 20
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def test_a_token_comes_back_as_it_was() -> None:
    """Secret and authority travel in one string; neither shows in a log."""
    authority = create_authority(datetime.now(UTC), timedelta(days=1)).certificate
    token = JoinToken(create_secret(), authority)

    assert parse_join_token(f" {token.text}\n") == token
    assert token.join_pass not in repr(token)


@pytest.mark.parametrize("text", ["", "baton1.short.AAAA", f"baton2.{'s' * 32}.AAAA", f"baton1.{'s' * 32}.", "x"])
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    """The message says what a token looks like."""
    with pytest.raises(ConfigurationError, match=r"baton1\.PASS\.AUTHORITY") as caught:
        parse_join_token(text)

    assert "s" * 32 not in caught.value.message


SECRET = "s" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _is_let_in(passes: JoinPasses, node_id: str, shown: str, now: datetime = NOW) -> bool:
    """Return whether a pass lets a machine in."""
    try:
        with passes.used_by(node_id, shown, now):
            return True
    except AuthenticationError:
        return False


def test_a_pass_is_for_as_many_machines_as_it_says() -> None:
    """Any of them may show it again; where taking one in fails, another may come in its place."""
    passes, shown = JoinPasses(SECRET), create_pass(SECRET, ends_at=NOW + timedelta(hours=1), num_machines=2)
    with pytest.raises(ZeroDivisionError), passes.used_by("mac-0", shown, NOW):
        raise ZeroDivisionError

    let_in = [_is_let_in(passes, node_id, shown) for node_id in ("mac-1", "mac-2", "mac-3", "mac-1")]

    assert let_in == [True, True, False, True]


def test_a_pass_may_be_for_one_node_alone() -> None:
    """Whoever has it cannot take another's name."""
    passes, shown = JoinPasses(SECRET), create_pass(SECRET, ends_at=NOW + timedelta(hours=1), node_id="mac-1")

    assert not _is_let_in(passes, "mac-2", shown)
    assert _is_let_in(passes, "mac-1", shown)


def test_a_pass_ends() -> None:
    """The next one has a number of its own."""
    passes, ends_at = JoinPasses(SECRET), NOW + timedelta(hours=1)
    shown, other = (create_pass(SECRET, ends_at=ends_at) for _ in range(2))

    assert _is_let_in(passes, "mac-1", shown, ends_at - timedelta(seconds=1))
    assert not _is_let_in(passes, "mac-1", shown, ends_at)
    assert shown != other


@pytest.mark.parametrize(
    "change",
    [
        lambda shown: SECRET,
        lambda shown: "",
        lambda shown: f"9{shown}",
        lambda shown: shown.replace("-1-", "-9-", 1),
        lambda shown: f"{shown[:-1]}{'0' if shown[-1] != '0' else '1'}",
        lambda shown: create_pass("t" * 32, ends_at=NOW + timedelta(hours=1)),
    ],
)
def test_no_other_pass_lets_anybody_in(change: Callable[[str], str]) -> None:
    """Neither the secret itself, nor a pass that says more, nor that of another deployment."""
    shown = create_pass(SECRET, ends_at=NOW + timedelta(hours=1))

    assert not _is_let_in(JoinPasses(SECRET), "mac-1", change(shown))


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


def test_a_file_of_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """So is one that is no text."""
    with pytest.raises(ConfigurationError, match=r"join secret .*gone"):
        read_secret(tmp_path / "gone")
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigurationError, match=r"join secret .*bytes"):
        read_secret(tmp_path / "bytes")


def test_of_passes_that_have_ended_nothing_is_kept() -> None:
    """Anybody of the deployment may make any number of them."""
    passes = JoinPasses(SECRET)
    short = create_pass(SECRET, ends_at=NOW + timedelta(minutes=1))
    long = create_pass(SECRET, ends_at=NOW + timedelta(hours=1))
    assert _is_let_in(passes, "a", short)
    assert _is_let_in(passes, "b", long)

    assert not _is_let_in(passes, "c", long, NOW + timedelta(minutes=1))

    assert list(passes._users) == [long]
