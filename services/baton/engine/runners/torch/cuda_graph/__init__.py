"""Decode over buffers that stay where they are, so that a CUDA graph of the whole step can be replayed.

`rows` gives each sequence a row of the buffers and finds what the device lacks; `buffers` holds what the device knows
of the rows; `batch` shows them to the model; `step` goes from the fed tokens to the chosen ones, captured once per
padded batch; `launched` is a pass under way; `runner` sends what has changed, replays, and goes on without waiting.

Where there is no CUDA device the same steps run one operation after the other.
"""
