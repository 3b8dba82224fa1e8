"""Digests of tokenizer files."""

from __future__ import annotations

from pathlib import Path

from baton.text.digest import tokenizer_digest


def test_a_folder_without_tokenizer_files_has_an_empty_digest(tmp_path: Path) -> None:
    """A node without a tokenizer is not compared."""
    (tmp_path / "config.json").write_text("{}")

    assert tokenizer_digest(tmp_path) == ""


def test_the_digest_is_32_hexadecimal_digits_and_depends_on_contents(tmp_path: Path) -> None:
    """Another byte, another digest."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ }")

    assert len(before) == 32
    assert int(before, 16) >= 0
    assert tokenizer_digest(tmp_path) != before


def test_the_chat_template_takes_part(tmp_path: Path) -> None:
    """The same vocabulary with another template makes other prompts."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(str(tmp_path))
    (tmp_path / "chat_template.jinja").write_text("x")

    assert tokenizer_digest(tmp_path) != before


def test_files_that_do_not_decide_about_tokens_do_not_count(tmp_path: Path) -> None:
    """Weights may change without another tokenizer."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "config.json").write_text("{}")

    assert tokenizer_digest(tmp_path) == before
