"""What is removed from an image's virtual environment."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from baton.demo import checkpoint_dir

_SCRIPT = Path(__file__).parents[2] / "docker" / "slim.py"


@pytest.mark.parametrize("has_torch", [False, True])
def test_code_of_models_stays_only_where_a_framework_can_run_it(tmp_path: Path, has_torch: bool) -> None:
    """A gateway keeps tokenizers and configurations; a node with torch keeps the models too."""
    for name in (
        "pip/main.py",
        "grpc/__pycache__/a.pyc",
        "transformers/models/llama/modeling_llama.py",
        "transformers/models/llama/tokenization_llama.py",
        "transformers/models/auto/modeling_auto.py",
        *(["torch/__init__.py"] if has_torch else []),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    _slim().remove_unused(tmp_path)

    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py*")}
    expected = {
        "transformers/models/llama/tokenization_llama.py",
        "transformers/models/auto/modeling_auto.py",
    }
    with_torch = {"torch/__init__.py", "transformers/models/llama/modeling_llama.py"}
    assert kept == expected | (with_torch if has_torch else set())


def test_what_is_removed_is_imported_by_nothing_that_is_used() -> None:
    """Transformers' tokenizers load where every module that would be removed cannot be found."""
    (site_packages,) = {Path(folder).parent for folder in _folders_of("transformers")}
    slim = _slim()
    removed = [
        str(path.relative_to(site_packages))
        for pattern in (*slim.UNUSED, *slim.UNUSED_WITHOUT_TORCH)
        for path in site_packages.glob(pattern)
        if path.name != "__pycache__" and not any(path.is_relative_to(site_packages / used) for used in slim.USED)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _USE, str(checkpoint_dir())],
        input=json.dumps([name for name in removed if not name.endswith((".dist-info", ".pyi", ".pxd"))]),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout == "TokenizersBackend\n", done.stderr


_USE = """
import importlib.machinery, json, sys
from pathlib import Path

removed = {name.removesuffix(".py").replace("/", ".") for name in json.load(sys.stdin)} | {"torch"}

class Removed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        parts = name.split(".")
        if any(".".join(parts[:end]) in removed for end in range(1, len(parts) + 1)):
            return None
        return super().find_spec(name, path, target)

sys.meta_path[:] = [Removed if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
from transformers import AutoTokenizer
print(type(AutoTokenizer.from_pretrained(sys.argv[1])).__name__)
"""


def _folders_of(package: str) -> list[str]:
    found = importlib.util.find_spec(package)
    assert found is not None
    return list(found.submodule_search_locations or [])


def _slim() -> ModuleType:
    specification = importlib.util.spec_from_file_location("slim", _SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
