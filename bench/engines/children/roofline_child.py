"""What one core can do, as a child process of `baton bench engine`: products per second, and bytes read per second."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from bench.engines.models import HIDDEN_SIZE, INTERMEDIATE_SIZE

_NUM_TRIES = 15
_READ_BYTES = 1 << 30


def product_flops(dtype: torch.dtype) -> float:
    """Return the best rate of the model's largest product at 512 rows, in FLOP/s: of torch's kernels and oneDNN's.

    On a core without instructions for half precision it is float32's, which is how such products are computed best.
    """
    num_rows, num_outputs = 512, 2 * INTERMEDIATE_SIZE
    rows, weight = torch.randn(num_rows, HIDDEN_SIZE).to(dtype), torch.randn(num_outputs, HIDDEN_SIZE).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
    except RuntimeError:
        if dtype is torch.float32:
            raise
        return product_flops(torch.float32)
    seconds = min(
        _fastest(lambda: torch.nn.functional.linear(rows, weight)),
        _fastest(lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")),
    )
    return 2.0 * num_rows * HIDDEN_SIZE * num_outputs / seconds


def read_bytes_per_second() -> float:
    """Return the best rate of reading memory far larger than any cache, by a sum or by products with a vector."""
    matrix = torch.zeros(_READ_BYTES // (4 * 1024), 1024)
    vector = torch.ones(1024)
    return _READ_BYTES / min(_fastest(matrix.sum, 5), _fastest(lambda: matrix @ vector, 5))


def _fastest(run: Callable[[], object], num_tries: int = _NUM_TRIES) -> float:
    run()
    seconds = []
    for _ in range(num_tries):
        started = time.thread_time()
        run()
        seconds.append(time.thread_time() - started)
    return min(seconds)


def main() -> None:
    """Answer each line of standard input with the rates of the moment, until it ends."""
    torch.set_num_threads(1)
    print(json.dumps({"is_ready": True}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            dtype = getattr(torch, json.loads(line)["dtype"])
            rates = {"flops": product_flops(dtype), "bytes_per_second": read_bytes_per_second()}
            print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main()
