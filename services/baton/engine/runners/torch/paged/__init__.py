"""Attention over blocks in one launch: packed prompts, chunks, cached prefixes, decode, windows, sinks.

`queries` describes whose rows they are by tensors on the device; `kernel` is the Triton kernel and `tiles` its sizes;
`attention` launches it, or `reference` where there is no CUDA device.
"""
