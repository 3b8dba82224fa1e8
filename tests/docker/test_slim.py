"""What is removed from an image's virtual environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

_SCRIPT = Path(__file__).parents[2] / "docker" / "slim.py"


@pytest.mark.parametrize("has_torch", [False, True])
def test_code_of_models_stays_only_where_a_framework_can_run_it(tmp_path: Path, has_torch: bool) -> None:
    """A gateway keeps tokenizers and configurations; a node with torch keeps the models too."""
    for name in (
        "pip/main.py",
        "grpc/__pycache__/a.pyc",
        "kubernetes/aio/client.py",
        "kubernetes/client/api.py",
        "transformers/models/llama/modeling_llama.py",
        "transformers/models/llama/tokenization_llama.py",
        *(["torch/__init__.py"] if has_torch else []),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    _slim().remove_unused(tmp_path)

    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py*")}
    expected = {"kubernetes/client/api.py", "transformers/models/llama/tokenization_llama.py"}
    with_torch = {"torch/__init__.py", "transformers/models/llama/modeling_llama.py"}
    assert kept == expected | (with_torch if has_torch else set())


def _slim() -> ModuleType:
    specification = importlib.util.spec_from_file_location("slim", _SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
