"""LiteLLM's proxy in front of Baton, asked by the official clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from features import ANSWER, KEY, MODEL, QUESTION, SUM, URL, expect, expect_refusal, expect_sum, run

_START_SECONDS = 150.0
_TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
_PORT = 0
_PROXY_KEY = f"sk-{secrets.token_hex(16)}"
"""Who asks the proxy; without one it does not start."""
_PROVIDERS = {"vllm": "hosted_vllm", "openai": "openai"}
"""LiteLLM's providers for such servers, by the names that the proxy serves them under."""


def _client() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{_PORT}/v1", api_key=_PROXY_KEY, max_retries=0, timeout=60)


def _chat(provider: str = "vllm", **fields: Any) -> Any:
    asked = {"model": provider, "messages": _TURNS, "temperature": 0, "max_tokens": 300, **fields}
    return _client().chat.completions.create(**asked)


def create() -> None:
    """A chat by each provider."""
    for provider in _PROVIDERS:
        expect(_chat(provider).choices[0].message.content, ANSWER, provider)


def stream() -> None:
    """The same text in pieces."""
    expect("".join(chunk.choices[0].delta.content or "" for chunk in _chat(stream=True)), ANSWER, "streamed")


def usage() -> None:
    """The stream's equals the whole answer's."""
    chunks = list(_chat(stream=True, stream_options={"include_usage": True}))
    expect(chunks[-1].usage.total_tokens, _chat().usage.total_tokens, "total tokens")


def structured() -> None:
    """By a schema of the answer."""
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SUM, "strict": True}}
    expect_sum(json.loads(_chat("openai", response_format=form).choices[0].message.content))


def responses() -> None:
    """OpenAI's newer API."""
    expect(_client().responses.create(model="openai", input=QUESTION, temperature=0).output_text, ANSWER, "answer")


def messages() -> None:
    """Anthropic's API, which the proxy translates, by each provider, whole and streamed."""
    for provider in _PROVIDERS:
        for is_stream in (False, True):
            body = {"model": provider, "messages": _TURNS, "temperature": 0, "max_tokens": 64, "stream": is_stream}
            expect(_message_text(body, is_stream), ANSWER, f"{provider}, {is_stream=}")


def _message_text(body: Any, is_stream: bool) -> str:
    headers = {"content-type": "application/json", "x-api-key": _PROXY_KEY, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"http://127.0.0.1:{_PORT}/v1/messages", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{body['model']}: {error.code} {error.read().decode()}") from error
    if not is_stream:
        return "".join(block.get("text", "") for block in json.loads(text)["content"])
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


def errors() -> None:
    """A refusal comes through."""
    expect_refusal(openai.BadRequestError, lambda: _chat(temperature=-1), "temperature")


@contextmanager
def _proxy() -> Iterator[int]:
    """Run the proxy; return its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"{provider}/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY},
        }
        for name, provider in _PROVIDERS.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps({"model_list": models, "litellm_settings": {"telemetry": False}}))
        program = Path(sys.executable).with_name("litellm")
        command = (
            str(program),
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        )
        environment = {**os.environ, "NO_COLOR": "1", "LITELLM_MASTER_KEY": _PROXY_KEY}
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _wait_until_alive(process, port, log)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_alive(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the proxy does not start: {log.read_text()[-300:]}") from error
            time.sleep(0.2)
        else:
            return


FEATURES = (create, stream, usage, structured, responses, messages, errors)

if __name__ == "__main__":
    with _proxy() as _PORT:
        run({feature.__name__: feature for feature in FEATURES})
