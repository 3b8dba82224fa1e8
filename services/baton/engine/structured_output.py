"""The form that a request demands of its output: the value that travels with the sampling parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from baton.errors import InvalidFieldError

ConstraintKind = Literal["json_schema", "regex", "lark"]
"""The language that a constraint is written in."""

MAX_CONSTRAINT_BYTES = 256 * 1024
"""Longest constraint, UTF-8. What matters more is how complex it is; that shows when it is compiled."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A language that the whole output must be a sentence of (protos/baton/v1/generation.proto, StructuredOutput)."""

    kind: ConstraintKind
    """What `text` is."""
    text: str
    """JSON Schema as JSON text, a regular expression, or a grammar in llguidance's dialect of Lark."""

    def check(self) -> None:
        """Check what needs no compiler.

        Raises:
            InvalidFieldError: If the text is empty or too long.
        """
        num_bytes = len(self.text.encode())
        if not 1 <= num_bytes <= MAX_CONSTRAINT_BYTES:
            expected = f"expected 1 to {MAX_CONSTRAINT_BYTES} bytes"
            raise InvalidFieldError(f"structured_output.{self.kind}", f"{expected}, got {num_bytes}")
