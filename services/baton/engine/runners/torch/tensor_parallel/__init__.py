"""Tensor parallelism over the GPUs of one host: each rank holds some heads of every layer and computes a share of it.

`ranks` cuts a model and makes shares whole; `order` is what the first rank, which alone is scheduled, tells the others;
`follower` is another rank's process, `peer` the first one's end of it; `runner` makes all of them one runner.
"""
