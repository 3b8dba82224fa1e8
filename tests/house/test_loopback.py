"""Nothing listens to the network unless it was told to."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest
from pydantic_settings import BaseSettings

from house.repository import PACKAGE, ROOT, sources

_LOOPBACK = "127.0.0.1"
_ALL_INTERFACES = {"0.0.0.0", "::", "[::]"}
_SETTINGS = sorted(path.parent.name for path in PACKAGE.glob("*/settings.py"))


@pytest.mark.parametrize("package", _SETTINGS)
def test_services_bind_loopback_by_default(package: str) -> None:
    """Every host of a settings class is 127.0.0.1, or empty where it follows another, and so is every address."""
    module = importlib.import_module(f"baton.{package}.settings")
    defaults = {
        f"{settings.__name__}.{name}": field.default
        for _, settings in inspect.getmembers(module, inspect.isclass)
        if issubclass(settings, BaseSettings)
        for name, field in settings.model_fields.items()
        if name.endswith(("host", "_address"))
    }

    assert {name: host for name, host in defaults.items() if host and host.partition(":")[0] != _LOOPBACK} == {}


def test_no_module_names_all_interfaces() -> None:
    """The wildcard addresses do not occur as strings in the services."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in _ALL_INTERFACES
    ]

    assert named == []
