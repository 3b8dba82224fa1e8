"""Tools that a model may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tool:
    """A function by its name and the JSON schema of its arguments."""

    name: str
    """Letters, digits, "_" and "-"; unique within a request."""
    parameters: Mapping[str, object]
    """JSON schema of an object."""
    description: str | None = None
    """What it does, for the model."""
    is_strict: bool = False
    """Whether arguments must follow the schema also where the model is free not to call."""

    @property
    def definition(self) -> dict[str, object]:
        """Return the tool as chat templates know it: OpenAI's object."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}
