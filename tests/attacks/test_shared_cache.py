"""Finding 3: the prefix cache told one tenant what another had asked.

Bob guessed Alice's prompt: where he was right the answer counted cached tokens, so that text could be searched block by
block.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from attacks.victims import full
from checkpoints import checkpoint
from system.cluster import Cluster
from system.plan import MODEL_NAME

PROMPT = list(range(5, 5 + 160))


def cached_tokens(cluster: Cluster, key: str, **fields: Any) -> int:
    """Return how many tokens of a prompt an answer says were cached."""
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=60)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 1} | fields
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))


@full
def test_a_guessed_prompt_of_another_tenant_is_never_cached(tmp_path: Path) -> None:
    """Whatever salt he names; she has her own cache."""
    keys = tmp_path / "keys"
    keys.write_text("alice:hers\nbob:his\n")
    settings = {"gateway": {"api_keys_file": str(keys)}}
    with Cluster(checkpoint("llama"), prefill=(), decode=("mock",), settings=settings) as cluster:
        first, again = cached_tokens(cluster, "hers"), cached_tokens(cluster, "hers")
        guessed = [cached_tokens(cluster, "his", cache_salt=salt) for salt in ("", "alice", "alice\0")]

    assert (first, guessed) == (0, [0, 0, 0])
    assert again > 100
