"""What people found out about mutants that no test caught."""

from __future__ import annotations

from collections.abc import Mapping

EQUIVALENT: Mapping[str, str] = {}
"""Why a mutant does what the module does, by its name."""

SURVIVED: Mapping[str, str] = {}
"""The test that was written because a mutant had survived, by its name."""
