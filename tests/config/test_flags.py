"""Flags of a settings class."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, SecretStr

from baton.config.flags import describe_settings, flag_help, parse_flags
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
    lines = {line.flag: line.default for line in flag_help(Sample)}

    assert lines["--http-port"] == "8000"
    assert lines["--needed"] == "required"
