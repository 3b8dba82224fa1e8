"""How weights are laid out for kernels; no numba is needed to know it."""

from __future__ import annotations

PANEL_OUTPUTS = 64
"""Outputs whose weights lie side by side in a panel."""
STRIP_INPUTS = 8
"""Rows of a transposed weight that are read together; it has a multiple of them."""
STRIP_OUTPUTS = 32
"""A transposed weight has a multiple of so many columns."""
