"""Tensor parallelism over the GPUs of one host: each rank holds some heads of every layer and computes a share of it.

`ranks` is how shares become whole; `share` cuts a model; `order` is what the first rank, which alone is scheduled,
tells the others; `follower` is another rank's process; `runner` makes all of them one runner.
"""
