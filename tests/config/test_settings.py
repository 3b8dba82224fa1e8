"""Settings: flags, precedence, groups, and errors that name the key as the user wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pytest
from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton.config.settings import (
    ServiceSettings,
    describe_settings,
    flag_help,
    groups_of,
    load_settings,
    parse_flags,
    read_file,
)
from baton.errors import ConfigurationError


class Sample(BaseModel):
    """Settings of no service."""

    http_port: int = 8000
    is_fast: bool = False
    api_keys: str = ""
    token: SecretStr = SecretStr("")
    needed: str


def test_values_follow_their_flag_or_an_equals_sign() -> None:
    """Both spellings are taken; a value may begin with dashes or contain an equals sign."""
    values = parse_flags(Sample, ["--http-port", "-1", "--needed=a=b", "--api-keys", "--engine mlx"])

    assert values == {"http_port": "-1", "needed": "a=b", "api_keys": "--engine mlx"}


def test_booleans_need_no_value() -> None:
    """`--is-fast` and `--no-is-fast` are enough."""
    assert parse_flags(Sample, ["--is-fast"]) == {"is_fast": "true"}
    assert parse_flags(Sample, ["--no-is-fast"]) == {"is_fast": "false"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unknown flag --prot"),
        (["stray"], "unknown flag stray"),
        (["--no-http-port"], "unknown flag --no-http-port"),
        (["--http-port"], "--http-port needs a value"),
        (["--http-port", "--needed"], "--http-port needs a value"),
        (["--needed=1", "--needed=2"], "--needed is given twice"),
    ],
)
def test_a_wrong_flag_is_named(arguments: list[str], message: str) -> None:
    """Whatever is wrong, the message has the flag."""
    with pytest.raises(ConfigurationError, match=message):
        parse_flags(Sample, arguments)


def test_secrets_are_masked_when_settings_are_printed() -> None:
    """Neither SecretStr nor fields named like keys show their value; empty ones show that they are empty."""
    shown = describe_settings(Sample(api_keys="hush", token=SecretStr("hush"), needed="x"))

    assert "hush" not in shown
    assert "needed=x" in shown
    assert "api_keys= " in describe_settings(Sample(needed="x"))


def test_help_has_a_line_per_field() -> None:
    """Flag, default and whether it is required."""
    lines = {line.flag: line.default for line in (flag_help(Sample, name) for name in Sample.model_fields)}

    assert lines["--http-port"] == "8000"
    assert lines["--needed"] == "required"


class SampleSettings(BaseSettings):
    """Settings of no service."""

    model_config = SettingsConfigDict(env_prefix="BATON_SAMPLE_", extra="forbid")

    port: int = Field(default=1, ge=0, le=65535)
    name: str = "default"
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


class Limits(ServiceSettings):
    """A group of some service's settings."""

    group: ClassVar[str] = "Limits"

    port: int = 1
    max_characters: int = 80


class GroupedSettings(Limits):
    """Settings of a service that are made of a group and of their own."""

    model_config = SettingsConfigDict(env_prefix="BATON_GROUPED_")

    group: ClassVar[str] = "Own"

    port: int = 2
    name: str = ""


def test_settings_are_told_by_group() -> None:
    """A field stays in the group that brought it in, whatever default the service gives it."""
    groups = {group.title: group.fields for group in groups_of(GroupedSettings)}

    assert groups == {"Own": ["name"], "Limits": ["port", "max_characters"]}


def test_choices_and_unions_are_told_in_a_word() -> None:
    """Help has what may be written, not the name of a type."""

    class Typed(BaseModel):
        mode: Literal["auto", "on"] = "auto"
        count: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
        file: Path | None = None

    assert [flag_help(Typed, name).type_name for name in Typed.model_fields] == ["auto|on", "int|auto", "Path"]
