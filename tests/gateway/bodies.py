"""The smallest body of each endpoint that takes one."""

from __future__ import annotations

from typing import Any, cast

from baton.gateway.api.exo.bench import BenchEndpoint
from baton.gateway.api.exo.instances import Instances
from baton.gateway.api.routes import model_endpoints
from baton.gateway.generation.generator import TextGenerator
from gateway.fake_cluster import MODEL

BENCH_PATH = "/bench/chat/completions"
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

_ENDPOINTS = model_endpoints(cast(TextGenerator, None), BenchEndpoint(Instances(lambda: 0.0)))
ROUTES = {endpoint.path: endpoint for endpoint in _ENDPOINTS}
"""Every route that generates or tokenizes, as a gateway has them."""
