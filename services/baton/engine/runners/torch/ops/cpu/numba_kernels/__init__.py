"""Kernels for one thread of a CPU, compiled at start by numba: a decode step must read weights and KV, once.

`attention`, `product` and `elementwise` are the kernels of decode steps, `layer` strings them together, `step` goes
through all layers in one call, and `kernel` compiles them; `prompt_attention` attends from prompts. `numbers` knows
bfloat16 and exponentials; `vectors`, `strips`, `tiles`, `registers` and `addresses` what numba has no word for;
`support` says where the kernels serve, `sizes` how weights are laid out for them; `single_queries` is what attention is
asked.

How weights are laid out for kernels; no numba is needed to know it.
"""

from __future__ import annotations

PANEL_OUTPUTS = 64
"""Outputs whose weights lie side by side in a panel."""
STRIP_INPUTS = 8
"""Rows of a transposed weight that are read together; it has a multiple of them."""
STRIP_OUTPUTS = 32
"""A transposed weight has a multiple of so many columns."""
