"""Kernels of a CPU's thread, compiled at start by numba: a decode step must read weights and KV, once.

`decode_step` and `attention` are the kernels; `numbers`, `vectors` and `products` what numba has no word for;
`compiling` keeps their machine code. What stands here says how weights are laid out for kernels, and needs no numba.
"""

from __future__ import annotations

PANEL_OUTPUTS = 64
"""Outputs whose weights are multiplied together; they lie side by side in a panel, or in two of half its width."""
PANEL_WIDTHS = (PANEL_OUTPUTS, PANEL_OUTPUTS // 2)
"""Outputs of a panel: oneDNN has narrow ones in bfloat16 where the CPU multiplies by AMX."""
MAX_PANEL_ROWS = 8
"""Rows up to which panels beat oneDNN, whatever the threads: steps of 8 rows of SmolLM-135M take on one and two threads
of a Xeon with AMX 67 and 39 ms in float32, where oneDNN's take 89 on two, 40 and 25 in bfloat16 against 66."""
STRIP_INPUTS = 8
"""Rows of a transposed weight that are read together; it has a multiple of them."""
STRIP_OUTPUTS = 32
"""A transposed weight has a multiple of so many columns."""
AFFINE_OUTPUTS = 16
"""Outputs whose packed weights lie side by side."""
