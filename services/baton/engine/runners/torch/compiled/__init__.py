"""Kernels for one thread of a CPU, compiled at start by numba: a decode step must read weights and KV, once.

`attention`, `product` and `elementwise` are the kernels of decode steps, `layer` strings them together, `step` goes
through all layers in one call, and `kernel` compiles them; `prompt_attention` attends from prompts. `numbers` knows
bfloat16 and exponentials; `vectors`, `strips`, `tiles`, `registers` and `addresses` what numba has no word for;
`support` says where the kernels serve, `sizes` how weights are laid out for them; `single_queries` is what attention is
asked.
"""
