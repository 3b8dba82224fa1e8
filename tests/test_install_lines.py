"""Lines that install Baton name it, in code by one function and in documents by its wheel; `make matrix` runs them."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

import baton
from baton.cli.bench import BENCHMARKS
from baton.installation import DISTRIBUTION
from house.repository import ROOT, all_sources
from install_lines import documented_lines

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_EXTRAS = set(_PROJECT["optional-dependencies"])
_WHEEL = f"{DISTRIBUTION.replace('-', '_')}-{baton.__version__}-py3-none-any.whl"


def test_the_project_has_the_name_and_version_that_the_code_knows() -> None:
    """Its own extras name it too: another name would be somebody else's package."""
    own = [text for texts in _PROJECT["optional-dependencies"].values() for text in texts if text.startswith("baton")]

    assert (_PROJECT["name"], _PROJECT["version"]) == (DISTRIBUTION, baton.__version__)
    assert {text.partition("[")[0] for text in own} == {DISTRIBUTION}


def test_every_hint_of_the_code_is_made_by_one_function_of_extras_that_exist() -> None:
    """No line is written out, and none names an extra that is none."""
    named = set[str]()
    for path in all_sources():
        text = path.read_text()
        assert path.name == "installation.py" or not re.search(r"pip install|baton(-serve)?\[", text), path
        for node in ast.walk(ast.parse(text)) if "install_line(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "install_line":
                named |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}

    named |= {extra for benchmark in BENCHMARKS.values() for extra in benchmark.extras}
    assert {"agent", "bench", "cuda", "gateway", "mlx", "torch", "worker"} == named
    assert named <= _EXTRAS


@pytest.mark.parametrize("line", documented_lines())
def test_a_line_of_a_document_installs_our_wheel(line: str) -> None:
    """The file that `make wheel` makes, with extras that exist."""
    match = re.fullmatch(r"pip install '\./([\w.-]+\.whl)\[([\w,]+)\]'", line)

    assert match is not None
    assert match[1] == _WHEEL
    assert match[2] == "EXTRAS" or set(match[2].split(",")) <= _EXTRAS
