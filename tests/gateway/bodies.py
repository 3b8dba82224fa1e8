"""The smallest body of each endpoint that takes one."""

from __future__ import annotations

from typing import Any

from baton.gateway.api.exo.bench import BENCH_PATH, BenchEndpoint
from baton.gateway.api.exo.instances import Instances
from baton.gateway.api.routes import POST_ROUTES
from gateway.fake_cluster import MODEL

_TURN = {"role": "user", "content": "x"}

SMALLEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [_TURN]},
    "/v1/completions": {"model": MODEL, "prompt": "x"},
    "/v1/responses": {"model": MODEL, "input": "x"},
    "/v1/messages": {"model": MODEL, "messages": [_TURN], "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [_TURN]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    BENCH_PATH: {"model": MODEL, "messages": [_TURN], "max_tokens": 1},
}

ROUTES = {**POST_ROUTES, BENCH_PATH: BenchEndpoint(Instances(lambda: 0.0)).route}
"""Every route that generates or tokenizes, as a gateway has them."""
