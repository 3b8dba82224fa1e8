"""Ids, log-probabilities, text and counts of one answer agree, however its tokens are batched on their way."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import grpc
import pytest

from baton.gateway.server import RunningGateway
from baton.v1 import generation_pb2 as generation
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, finished, judgement, tokens
from gateway.rest import ask
from text.tokenizer_folders import byte_level

NUM_CASES, NUM_SHORT_CASES = (1000, 1000) if os.environ.get("BATON_MATRIX") else (12, 2)
MAX_SHORT_TOKENS = 4
TOKENIZER = byte_level()
END = int(TOKENIZER.convert_tokens_to_ids("<|end|>"))
TURN = {"role": "user", "content": "x"}


class Case(NamedTuple):
    """What the model generates and what stops it."""

    token_ids: list[int]
    stops: list[str]
    is_stop_shown: bool

    @property
    def expected(self) -> tuple[list[int], str, str]:
        """Return the tokens that count, the text and the reason: those of tokens that come one by one."""
        for length in range(1, len(self.token_ids) + 1):
            text = TOKENIZER.decode(self.token_ids[:length], skip_special_tokens=True)
            found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in self.stops if stop in text]
            if found:
                end, _, stop = min(found)
                return self.token_ids[:length], text[: end if self.is_stop_shown else end - len(stop)], "stop"
        reason = "stop" if self.token_ids[-1] == END else "length"
        return self.token_ids, TOKENIZER.decode(self.token_ids, skip_special_tokens=True), reason


def _case(seed: int) -> Case:
    draw = random.Random(seed)
    text = "".join(draw.choice("abjé hello") for _ in range(draw.randint(0, 16)))
    token_ids = list(TOKENIZER(text)["input_ids"]) if text else []
    if not token_ids or draw.random() < 0.5:
        token_ids.append(END)
    stops = ["".join(draw.choice("abj hel") for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(0, 2))]
    return Case(token_ids, stops, is_stop_shown=draw.random() < 0.3)


def _logprob(token_id: int) -> generation.TokenLogprob:
    return generation.TokenLogprob(token_id=token_id, logprob=-token_id / 64)


@pytest.fixture
def ending(loop: Loop, cluster: FakeCluster) -> Iterator[RunningGateway]:
    """Run a gateway whose model has an end token."""
    cluster.eos_token_ids = [END]
    with loop.running(cluster) as running:
        yield running


def _generate(cluster: FakeCluster, case: Case, sizes: Sequence[int] = ()) -> None:
    """Let the nodes send the tokens in batches of these sizes, by default of some that depend on the request's seed."""

    async def send(request: Any) -> AsyncIterator[Any]:
        for chunk in judgement(request):
            yield chunk
        draw, start, given = random.Random(request.sampling.seed), 0, iter(sizes)
        while start < len(case.token_ids):
            part = case.token_ids[start : start + (next(given) if sizes else draw.randint(1, 5))]
            has_logprobs = request.sampling.HasField("top_logprob_count")
            yield tokens(start, part, [_logprob(each) for each in part] if has_logprobs else ())
            start += len(part)
        has_ended = case.token_ids[-1] == END
        reason = generation.FINISH_REASON_STOP if has_ended else generation.FINISH_REASON_LENGTH
        yield finished(request, cluster.decodes[0].node_id, reason)

    cluster.decodes[0].script = send


def _events(data: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(3600)
def test_counts_agree_on_every_route(ending: RunningGateway, cluster: FakeCluster) -> None:
    """Streamed or not, with and without log-probabilities, several choices, by gRPC, and as running usage."""
    channel = grpc.insecure_channel(f"127.0.0.1:{ending.grpc_port}")
    for seed in range(NUM_CASES):
        case = _case(seed)
        _generate(cluster, case)
        token_ids, text, reason = case.expected
        options = {"model": MODEL, "stop": case.stops, "include_stop_str_in_output": case.is_stop_shown, "seed": seed}
        options |= {"max_tokens": len(case.token_ids), "n": 2}

        _check_completions(ending, options, token_ids, text, reason)
        _check_chats(ending, options, token_ids, text, reason)
        if not case.stops:
            _check_responses(ending, len(case.token_ids), token_ids, text)
        _check_grpc(channel, case, seed)
    channel.close()


@pytest.mark.timeout(3600)
def test_every_batching_of_a_short_output_is_told_alike(ending: RunningGateway, cluster: FakeCluster) -> None:
    """Each way to cut it into messages, by both APIs: what stops it may be anywhere in a message, or across two."""
    channel = grpc.insecure_channel(f"127.0.0.1:{ending.grpc_port}")
    for seed in range(NUM_SHORT_CASES):
        case = _case(seed)
        case = case._replace(token_ids=case.token_ids[:MAX_SHORT_TOKENS])
        options = {"model": MODEL, "stop": case.stops, "include_stop_str_in_output": case.is_stop_shown, "seed": seed}
        options |= {"max_tokens": len(case.token_ids), "n": 2}
        for sizes in _compositions(len(case.token_ids)):
            _generate(cluster, case, sizes)

            _check_chats(ending, options, *case.expected)
            _check_grpc(channel, case, seed)
    channel.close()


def _compositions(total: int) -> Iterator[list[int]]:
    """Yield each list of numbers above 0 with a sum."""
    for first in range(1, total):
        for rest in _compositions(total - first):
            yield [first, *rest]
    yield [total]


def _check_grpc(channel: grpc.Channel, case: Case, seed: int) -> None:
    """Check two choices with and without log-probabilities."""
    token_ids, text, reason = case.expected
    for has_logprobs in (True, False):
        sampling = generation.SamplingParameters(max_token_count=len(case.token_ids), seed=seed)
        if has_logprobs:
            sampling.top_logprob_count = 0
        request = messages.GenerateRequest(text="x", stop=case.stops, sampling=sampling, choice_count=2)
        request.include_stop_in_text = case.is_stop_shown
        responses = list(GenerationServiceStub(channel).Generate(request, timeout=20))  # type: ignore[no-untyped-call]
        for choice in range(2):
            own = [response for response in responses if response.choice_index == choice]
            assert [each for response in own for each in response.token_ids] == token_ids, seed
            told = [each.token_id for response in own for each in response.logprobs]
            assert told == (token_ids if has_logprobs else []), seed
            assert "".join(response.text for response in own) == text, seed
            end = own[-1].finished
            assert end.usage.completion_token_count == len(token_ids), seed
            assert generation.FinishReason.Name(end.reason) == f"FINISH_REASON_{reason.upper()}", seed
            assert end.stop in (case.stops if reason == "stop" and token_ids[-1] != END else [""]), seed


def _check_completions(
    gateway: RunningGateway, options: dict[str, Any], token_ids: Sequence[int], text: str, reason: str
) -> None:
    values = [-token_id / 64 for token_id in token_ids]
    body = {**options, "prompt": "x", "logprobs": 0}
    whole = ask(gateway, "/v1/completions", body).body
    assert whole["usage"]["completion_tokens"] == 2 * len(token_ids), options
    for choice in whole["choices"]:
        assert (choice["text"], choice["finish_reason"]) == (text, reason), options
        assert choice["logprobs"]["token_logprobs"] == values, options
    echoed = ask(gateway, "/v1/completions", {**body, "n": 1, "echo": True, "prompt": "xy"}).body["choices"][0]
    assert (echoed["text"], echoed["logprobs"]["token_logprobs"][2:]) == ("xy" + text, values), options
    plain = ask(gateway, "/v1/completions", {**body, "n": 1, "logprobs": None}).body
    assert (plain["choices"][0]["text"], plain["usage"]["completion_tokens"]) == (text, len(token_ids)), options


def _check_chats(
    gateway: RunningGateway, options: dict[str, Any], token_ids: Sequence[int], text: str, reason: str
) -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    body = {**options, "messages": [TURN], "logprobs": True, "stream": True, "stream_options": usage}
    events = _events(ask(gateway, "/v1/chat/completions", body).data)
    last = events.pop()
    assert last["usage"]["completion_tokens"] == 2 * len(token_ids), options
    counts: list[int] = [0, 0]
    texts, logprobs, reasons = ["", ""], [[], []], ["", ""]  # type: ignore[var-annotated]
    for event in events:
        (choice,) = event["choices"]
        index = choice["index"]
        texts[index] += choice["delta"].get("content", "")
        logprobs[index] += [each["logprob"] for each in (choice["logprobs"] or {"content": ()})["content"]]
        reasons[index] = choice["finish_reason"] or ""
        assert counts[index] <= event["usage"]["completion_tokens"] <= len(token_ids), options
        counts[index] = event["usage"]["completion_tokens"]
        assert len(logprobs[index]) == counts[index], options
        assert event["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + counts[index], options
    assert texts == [text] * 2, options
    assert logprobs == [[-token_id / 64 for token_id in token_ids]] * 2, options
    assert reasons == [reason] * 2, options
    assert counts == [len(token_ids)] * 2, options


def _check_responses(gateway: RunningGateway, limit: int, token_ids: Sequence[int], text: str) -> None:
    body = {"model": MODEL, "input": "x", "max_output_tokens": limit, "include": ["message.output_text.logprobs"]}
    whole = ask(gateway, "/v1/responses", body).body
    events = _events(ask(gateway, "/v1/responses", body | {"stream": True}).data)
    expected = [-token_id / 64 for token_id in token_ids]
    told = [each["logprob"] for event in events if event["type"].endswith("text.delta") for each in event["logprobs"]]
    assert told == expected
    for response in (whole, events[-1]["response"]):
        (part,) = response["output"][0]["content"]
        assert (part["text"], [each["logprob"] for each in part["logprobs"]]) == (text, expected)
        assert response["usage"]["output_tokens"] == len(token_ids)
    message = {"model": MODEL, "messages": [TURN], "max_tokens": limit}
    assert ask(gateway, "/v1/messages", message).body["usage"]["output_tokens"] == len(token_ids)
