"""Settings: precedence, and errors that name the key as the user wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest
from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton.config.loading import load_settings, read_file
from baton.errors import ConfigurationError


class SampleSettings(BaseSettings):
    """Settings of no service."""

    model_config = SettingsConfigDict(env_prefix="BATON_SAMPLE_", extra="forbid")

    port: int = Field(default=1, ge=0, le=65535)
    name: str = "default"
    public: int = Field(default=5, validation_alias=AliasChoices("public", "BATON_PUBLIC"))
    parts: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        if self.name == "needs-port" and not self.port:
            raise ValueError("port: expected a port, because of the name")
        return self


def test_a_default_holds_where_nothing_is_said() -> None:
    """Without flag, environment and file the class decides."""
    assert load_settings(SampleSettings, {}).port == 1


def test_a_flag_wins_over_the_environment_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is covered by the one above it."""
    file_values = {"port": 2, "name": "file"}
    assert load_settings(SampleSettings, {}, file_values).port == 2
    monkeypatch.setenv("BATON_SAMPLE_PORT", "3")
    assert load_settings(SampleSettings, {}, file_values).port == 3

    settings = load_settings(SampleSettings, {"port": "4"}, file_values)

    assert (settings.port, settings.name) == (4, "file")


def test_an_aliased_field_is_set_by_flag_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field whose environment variable has a name of its own still has its flag."""
    monkeypatch.setenv("BATON_PUBLIC", "6")

    assert load_settings(SampleSettings, {}).public == 6
    assert load_settings(SampleSettings, {"public": "7"}).public == 7


def test_a_bad_flag_is_named() -> None:
    """The message has the flag, with dashes."""
    with pytest.raises(ConfigurationError, match=r"^flag --port: .*65535"):
        load_settings(SampleSettings, {"port": "70000"})


def test_a_bad_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the variable."""
    monkeypatch.setenv("BATON_SAMPLE_PORT", "many")

    with pytest.raises(ConfigurationError, match=r"^environment variable BATON_SAMPLE_PORT: .*integer"):
        load_settings(SampleSettings, {})


def test_what_is_wrong_between_fields_is_said_as_it_is() -> None:
    """Without the words of the library that checks."""
    with pytest.raises(ConfigurationError, match=r"^port: expected a port, because of the name$"):
        load_settings(SampleSettings, {"name": "needs-port", "port": "0"})


def test_a_bad_list_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no JSON is refused under its field."""
    monkeypatch.setenv("BATON_SAMPLE_PARTS", "[")

    with pytest.raises(ConfigurationError, match="parts"):
        load_settings(SampleSettings, {})


def test_an_unknown_key_in_the_file_is_named() -> None:
    """A misspelt key does not pass silently."""
    with pytest.raises(ConfigurationError, match=r"^unknown key prot in node\.toml"):
        load_settings(SampleSettings, {}, {"prot": 1}, file_name="node.toml")


def test_a_file_gives_each_role_its_table(tmp_path: Path) -> None:
    """One file serves a machine; dashes and underscores are the same."""
    path = tmp_path / "node.toml"
    path.write_text("[router]\nport = 1\n[cache-index]\ndrain-seconds = 2.5\n")

    assert read_file(path, "cache-index") == {"drain_seconds": 2.5}
    assert read_file(path, "decode") == {}


@pytest.mark.parametrize("text", ["port = 1", "[rooter]\nport = 1", "[router"])
def test_a_file_that_no_role_owns_is_refused(tmp_path: Path, text: str) -> None:
    """Keys outside tables, unknown tables and broken TOML name the file."""
    path = tmp_path / "node.toml"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=r"node\.toml"):
        read_file(path, "router")
