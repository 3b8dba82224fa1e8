"""The shape of the documents: short pages, a drawing on each, links that lead to headings and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from house.repository import PACKAGE, ROOT

_PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "renames.md")
"""All but the list of old names, in which nobody reads."""
_RECIPES = sorted((ROOT / "docs/recipes").glob("*.md"))
_README, _CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
_WITHOUT_DRAWING = {"dialects.md", "models.md", "security_table.md"}
"""Pages to look something up in."""
_MAX_README_LINES, _MAX_PAGE_LINES, _MAX_RECIPE_LINES = 120, 150, 60
_MAX_COLUMNS = 120

_TABLE_OR_LINK = re.compile(r"\||.*\]\(|\s*\{")
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
_FOLDER = re.compile(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*/)`")


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_readme_is_read_in_one_sitting() -> None:
    """What Baton is, two commands, a first answer, a picture, where next."""
    assert len(_README.read_text().splitlines()) <= _MAX_README_LINES


@pytest.mark.parametrize("page", _PAGES, ids=_ids)
def test_a_page_is_short_and_drawn(page: Path) -> None:
    """One question a page, with one diagram."""
    text = page.read_text()

    assert len(text.splitlines()) <= _MAX_PAGE_LINES
    assert "```mermaid" in text or page.name in _WITHOUT_DRAWING


@pytest.mark.parametrize("recipe", _RECIPES, ids=_ids)
def test_a_recipe_is_a_few_steps(recipe: Path) -> None:
    """Numbered, and shorter than a page."""
    text = recipe.read_text()

    assert len(text.splitlines()) <= _MAX_RECIPE_LINES
    assert "\n1. " in text


@pytest.mark.parametrize("document", [_README, _CONTRIBUTING, *_PAGES, *_RECIPES], ids=_ids)
def test_prose_is_not_a_wall(document: Path) -> None:
    """Lines of prose end before column 120; tables and links are as long as they are."""
    prose = _FENCE.sub("", document.read_text()).splitlines()

    assert [line for line in prose if len(line) > _MAX_COLUMNS and not _TABLE_OR_LINK.match(line)] == []


@pytest.mark.parametrize("document", [_README, _CONTRIBUTING, *_PAGES, *_RECIPES], ids=_ids)
def test_links_lead_to_headings(document: Path) -> None:
    """What stands after `#` is a heading of the page."""
    broken = [
        f"{name}#{anchor}"
        for name, anchor in _ANCHOR.findall(document.read_text())
        if anchor not in _anchors(document.parent / name if name else document)
    ]

    assert broken == []


@pytest.mark.parametrize("document", [_README, _CONTRIBUTING, *_PAGES, *_RECIPES], ids=_ids)
def test_named_folders_exist(document: Path) -> None:
    """`engine/scheduling/`, below the package or the repository."""
    folders = _FOLDER.findall(document.read_text())

    assert [name for name in folders if not any((top / name).is_dir() for top in (ROOT, PACKAGE))] == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
