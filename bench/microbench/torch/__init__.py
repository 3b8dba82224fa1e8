"""Measures the torch engine from inside, on the device at hand: `python -m bench.microbench.torch`.

`cases` holds the kernel to float64; `shapes` makes models with random weights; `rates` asks what the device can do at
best; `passes` times decode, prefill and the hand-over of KV; `batches` times whole batches through the engine, beside
transformers' continuous batching. `bench/engines/gpu.py` runs it as a child and judges the numbers.
"""
