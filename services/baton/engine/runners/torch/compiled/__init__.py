"""Kernels for the rows of decode steps on a CPU, compiled at start by numba: a step must read weights and KV, once.

`attention`, `product` and `elementwise` are the kernels, `layer` strings them together, `step` goes through all layers
in one call, and `kernel` compiles them; `numbers` knows bfloat16 and exponentials, `vectors` and `addresses` what numba
has no word for; `support` says where the kernels serve; `single_queries` is what attention is asked.
"""
