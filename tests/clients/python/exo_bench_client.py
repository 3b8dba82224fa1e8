"""exo's benchmarks: the calls that they make, in their order; with EXO_CHECKOUT, exo's own scripts.

Source: bench/exo_bench.py, bench/prefill_decode_bench.py and tools/src/exo_tools of github.com/exo-explore/exo at
b5375f8. They are on no registry; `contract` and `links` repeat what they ask and read, `bench` and `prefill_decode` run
them from a checkout, with the packages that they import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from features import MODEL, MODEL_DIR, URL, AbsentError, expect, expect_true, run

PROMPT_TOKENS, OUTPUT_TOKENS = "129", "16"


def _call(method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"accept": "application/json", **({"content-type": "application/json"} if data else {})}
    request = urllib.request.Request(URL + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error


def _placements() -> list[dict[str, Any]]:
    (model,) = _call("GET", "/models")["data"]
    expect((model["name"], model["storage_size_megabytes"]), (MODEL, 0), "model, and nothing to download")
    query = urllib.parse.urlencode({"model_id": model["hugging_face_id"]})
    previews = _call("GET", f"/instance/previews?{query}")["previews"]
    return [each for each in previews if each["error"] is None and "ring" in each["instance_meta"].lower()]


def _content(placement: dict[str, Any]) -> Any:
    (content,) = placement["instance"].values()
    return content


@contextmanager
def _created(placement: dict[str, Any]) -> Iterator[str]:
    """Create an instance, and delete it again."""
    instance_id = _content(placement)["instanceId"]
    _call("POST", "/instance", {"instance": placement["instance"]})
    try:
        (shown,) = _call("GET", f"/state/instances/{instance_id}").values()
        for runner in shown["shardAssignments"]["runnerToShard"]:
            expect(_call("GET", f"/state/runners/{runner}"), {"RunnerReady": {}}, runner)
        yield instance_id
    finally:
        _call("DELETE", f"/instance/{instance_id}")


def _bench() -> Any:
    messages = [{"role": "user", "content": "a " * 100}]
    body = {"model": MODEL, "messages": messages, "stream": False, "max_tokens": int(OUTPUT_TOKENS)}
    answer = _call("POST", "/bench/chat/completions", body)
    stats = answer["generation_stats"]
    expect(stats["generation_tokens"], int(OUTPUT_TOKENS), "generated tokens")
    measured = (stats["prompt_tps"], stats["generation_tps"], stats["peak_memory_usage"]["inBytes"])
    expect_true(min(measured) > 0, f"figures {stats}")
    return answer["baton"]


def contract() -> str:
    """As exo_bench.py: every placement becomes an instance, and its nodes answer."""
    placements = _placements()
    for placement in placements:
        nodes = set(_content(placement)["shardAssignments"]["nodeToRunner"])
        with _created(placement):
            placed = _bench()
        expect({placed["prefill_node"], placed["decode_node"]}, nodes, "nodes")
    return f"{len(placements)} placements"


def links() -> None:
    """As prefill_decode_bench.py: two placements become instances, are linked, asked, and taken apart."""
    both, alone = sorted(_placements(), key=lambda each: -len(each["nodes"]))[:2]
    with _created(both) as prefill, _created(alone) as decode:
        _call("POST", "/v1/instance-links", {"prefill_instances": [prefill], "decode_instances": [decode]})
        link = _call("GET", "/v1/instance-links")[-1]
        placed = _bench()
        _call("DELETE", f"/v1/instance-links/{link['linkId']}")
    expect((placed["prefill_node"], placed["decode_node"]), (both["nodes"][0], alone["nodes"][-1]), "nodes")


def bench() -> str:
    """exo_bench.py itself."""
    rows = _run_script("exo_bench.py", "--warmup", "0")
    return f"{len(rows)} runs"


def prefill_decode() -> str:
    """prefill_decode_bench.py itself, with its comparison."""
    rows = _run_script("prefill_decode_bench.py", "--compare-baseline", pp="1001")
    expect({row["phase"] for row in rows}, {"prefill_alone", "disaggregated", "decode_alone"}, "phases")
    return f"{len(rows)} runs"


def _run_script(name: str, *arguments: str, pp: str = PROMPT_TOKENS) -> list[dict[str, Any]]:
    checkout = os.environ.get("EXO_CHECKOUT")
    if not checkout:
        raise AbsentError("exo's scripts are on no registry: EXO_CHECKOUT names a checkout")
    address = urllib.parse.urlsplit(URL)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        # Their tokenizer is looked for by the model's name, which is a folder here.
        (Path(folder) / MODEL).symlink_to(MODEL_DIR)
        sizes = ("--pp", pp, "--tg", OUTPUT_TOKENS, "--json-out", str(out))
        where = ("--host", str(address.hostname), "--port", str(address.port), "--model", MODEL)
        tools = Path(checkout) / "tools" / "src"
        done = subprocess.run(
            (sys.executable, str(Path(checkout) / "bench" / name), *where, *sizes, *arguments),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tools)},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        expect_true(done.returncode == 0 and out.exists(), f"exit status {done.returncode}: {done.stderr[-300:]}")
        read = json.loads(out.read_text())
    return read if isinstance(read, list) else read["runs"]


FEATURES = (contract, links, bench, prefill_decode)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
