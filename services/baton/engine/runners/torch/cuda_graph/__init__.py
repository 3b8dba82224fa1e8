"""Decode over buffers that stay where they are, so that a CUDA graph of the whole step can be replayed.

`buffers` gives each sequence a row, holds what the device knows of it, and finds what the device lacks; `step` goes
from the fed tokens to the chosen ones, captured once per padded batch; `runner` sends what has changed, replays, and
goes on without waiting. Where there is no CUDA device the same steps run one operation after the other.
"""
