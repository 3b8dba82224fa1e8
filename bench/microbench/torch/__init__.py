"""Measures the torch engine from inside, on the device at hand: `baton bench gpu`.

`shapes` makes models with random weights; `rates` asks what the device can do at best; `passes` times decode, prefill
and the hand-over of KV; `batches` times whole batches through the engine, beside transformers' continuous batching;
`findings` judges the numbers.
"""
