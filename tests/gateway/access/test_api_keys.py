"""The file of API keys."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from baton.errors import AuthenticationError, ConfigurationError
from baton.gateway.access import api_keys
from baton.gateway.access.api_keys import ApiKey, ApiKeys

KEYS = "# people\nalice:secret-a\n\nbob: secret:b\nalice:secret-a2\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of keys."""
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


@pytest.fixture
def keys(path: Path) -> ApiKeys:
    """Return the keys of the file."""
    keys = ApiKeys(path)
    keys.load()
    return keys


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"authorization": "Bearer secret-a"}, "alice"),
        ({"authorization": "bearer  secret-a2"}, "alice"),
        ({"authorization": "Bearer secret:b"}, "bob"),
        ({"x-api-key": "secret-a"}, "alice"),
    ],
)
def test_a_key_has_the_name_of_its_line(keys: ApiKeys, headers: dict[str, str], name: str) -> None:
    """As bearer token, or in Anthropic's header; a name may have several keys."""
    assert keys.authenticate(headers).name == name


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "Bearer secret"},
        {"authorization": "Bearer secret-a "[:-3]},
        {"authorization": "Basic secret-a"},
        {"authorization": "secret-a"},
        {"authorization": "Bearer alice:secret-a"},
        {"authorization": "Bearer \xff"},
        {"x-api-key": "# people"},
    ],
)
def test_anything_else_is_nobody(keys: ApiKeys, headers: dict[str, str]) -> None:
    """Neither parts of a key, nor another scheme, nor a comment."""
    with pytest.raises(AuthenticationError):
        keys.authenticate(headers)


def test_who_shows_no_key_learns_how(keys: ApiKeys) -> None:
    """It need not be told that a key is unknown which it has not sent."""
    with pytest.raises(AuthenticationError, match="Authorization: Bearer"):
        keys.authenticate({})


def test_an_administrators_key_says_so_in_its_line(path: Path) -> None:
    """The key ends before that."""
    path.write_text("alice:secret-a\nops:secret-o admin\n")
    keys = ApiKeys(path)
    keys.load()

    assert keys.authenticate({"x-api-key": "secret-o"})[:2] == ApiKey("ops", is_admin=True)[:2]
    assert not keys.authenticate({"x-api-key": "secret-a"}).is_admin


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice", "line 1"),
        ("a:x\nbob:", "line 2"),
        ("a:two words", "line 1"),
        ("a b:x", "line 1"),
        (":x", "line 1"),
        ("a:x\nb:x", "line 2 .* repeats"),
        ("# nothing\n", "no keys"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_secrets(path: Path, text: str, problem: str) -> None:
    """With the line; the message ends up in logs."""
    path.write_text(text.replace("x", "hidden"))

    with pytest.raises(ConfigurationError, match=rf"^api_keys_file.*{problem}") as failure:
        ApiKeys(path).load()
    assert "hidden" not in str(failure.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A gateway that was told to ask for keys does not start without them."""
    with pytest.raises(ConfigurationError, match="api_keys_file"):
        ApiKeys(tmp_path / "none").load()


def test_a_changed_file_is_read_again(keys: ApiKeys, path: Path) -> None:
    """Replaced as Kubernetes does it: by another file."""
    other = path.with_name("other")
    other.write_text("carol:secret-c\n")
    os.replace(other, path)
    keys.reload()

    assert keys.authenticate({"authorization": "Bearer secret-c"}).name == "carol"
    with pytest.raises(AuthenticationError):
        keys.authenticate({"authorization": "Bearer secret-a"})


def test_a_change_for_the_worse_keeps_the_keys(keys: ApiKeys, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and the next good state is taken."""
    path.unlink()
    with caplog.at_level(logging.WARNING):
        keys.reload()
        keys.reload()
    assert len(_told(caplog)) == 1
    caplog.clear()
    path.write_text("broken")
    with caplog.at_level(logging.WARNING):
        keys.reload()
        keys.reload()
    kept = keys.authenticate({"authorization": "Bearer secret-a"})
    path.write_text("carol:secret-c\n")
    keys.reload()

    assert kept.name == "alice"
    assert len(_told(caplog)) == 1
    assert keys.authenticate({"authorization": "Bearer secret-c"}).name == "carol"


def _told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == api_keys.__name__]


def test_a_name_has_a_weight(path: Path) -> None:
    """The same for all of its keys, an administrator's too; 1 where nothing is said."""
    path.write_text("alice:a weight=3\nalice:a2  weight=3\nbob:b admin weight=1000\ncarol:c\n")
    keys = ApiKeys(path)
    keys.load()

    assert [keys.authenticate({"x-api-key": key}).weight for key in ("a", "a2", "b", "c")] == [3, 3, 1000, 1]
    assert keys.authenticate({"x-api-key": "b"}).is_admin


@pytest.mark.parametrize(
    "text", ["a:k weight=0", "a:k weight=1001", "a:k weight=3\na:k2", "a:k weight=x", "a:k weight=2 admin"]
)
def test_a_weight_that_is_none_is_refused_by_its_line(path: Path, text: str) -> None:
    """Also two weights of one name."""
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=f"line {len(text.splitlines())} of"):
        ApiKeys(path).load()


def test_a_file_that_has_not_changed_is_not_read_again(keys: ApiKeys, caplog: pytest.LogCaptureFixture) -> None:
    """It is looked at every second, for ever."""
    caplog.set_level(logging.INFO, api_keys.__name__)
    keys.reload()

    assert not caplog.messages
