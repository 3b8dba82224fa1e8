"""Text completions through the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from baton.v1 import generation_pb2 as generation
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, tokens
from text.tokenizer_folders import byte_level

TOKENIZER = byte_level()


def _ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def test_each_form_of_a_prompt_is_taken(client: openai.OpenAI) -> None:
    """A string, strings, tokens, lists of tokens."""
    hello, world = _ids("hello"), _ids(" world")
    forms: list[tuple[Any, list[str]]] = [
        ("hello", ["hello"]),
        (["hello", " world"], ["hello", " world"]),
        (hello, ["hello"]),
        ([hello, world], ["hello", " world"]),
    ]
    for prompt, expected in forms:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1 if prompt != " world" else 9)

        texts = [choice.text for choice in answer.choices]
        assert len(texts) == len(expected)
        assert all(whole.startswith(text) for whole, text in zip(expected, texts, strict=True))


def test_without_a_limit_sixteen_tokens_are_generated(client: openai.OpenAI) -> None:
    """OpenAI's default."""
    usage = client.completions.create(model=MODEL, prompt="hello").usage

    assert usage is not None
    assert usage.completion_tokens == 16


def test_each_choice_has_a_seed_of_its_own_that_follows_from_the_first(
    client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """Same request, same seeds; the first choice has the request's own."""
    for _ in range(2):
        answer = client.completions.create(model=MODEL, prompt="hello", n=3, seed=5, max_tokens=4)

    seeds = [request.sampling.seed for request in cluster.decodes[0].requests]
    names = {request.request_id for request in cluster.decodes[0].requests}
    assert sorted(seeds[:3]) == sorted(seeds[3:])
    assert len(set(seeds)) == 3
    assert 5 in seeds
    assert max(seeds) < 2**53  # what JavaScript reads of a number
    assert len(names) == 6
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len(_ids("hello"))
    assert len(answer.baton["choices"]) == 3  # type: ignore[attr-defined]


def test_choices_of_a_stream_are_told_apart_by_their_index(client: openai.OpenAI) -> None:
    """Each ends once; the last of all carries the placement."""
    stream = client.completions.create(model=MODEL, prompt="hello world", n=2, max_tokens=9, stream=True)
    texts, ends, placements = {0: "", 1: ""}, [], []
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        ends += [chunk.choices[0].index] if chunk.choices[0].finish_reason else []
        placements.append(getattr(chunk, "baton", None))

    assert texts[0] == texts[1] != ""
    assert sorted(ends) == [0, 1]
    assert placements[-1]
    assert not any(placements[:-1])


def test_a_seed_is_drawn_and_reported_if_none_is_given(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """So that the answer can be had again."""
    answers = [client.completions.create(model=MODEL, prompt="hello") for _ in range(2)]

    seeds = [request.sampling.seed for request in cluster.decodes[0].requests]
    assert [answer.baton["seed"] for answer in answers] == seeds  # type: ignore[attr-defined]
    assert seeds[0] != seeds[1]
    assert max(seeds) < 2**53


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_stop_string_over_token_borders_is_cut_and_ends_the_generation(
    client: openai.OpenAI, cluster: FakeCluster, is_stream: bool
) -> None:
    """Text up to it, reason stop, and the node's call is cancelled."""

    async def hang(request: Any) -> AsyncIterator[Any]:  # it ends by being cancelled, or not at all
        for index in range(8):
            yield tokens(index, [echo_token(request, index)])
        await asyncio.sleep(60)

    cluster.decodes[0].script = hang
    options: Any = {"model": MODEL, "prompt": "abcdefgh xyz", "max_tokens": 200, "stop": ["ef", "zzz"]}
    if is_stream:
        chunks = list(client.completions.create(**options, stream=True))
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        choice = client.completions.create(**options).choices[0]
        text, reason = choice.text, choice.finish_reason

    assert (text, reason) == ("abcd", "stop")
    assert cluster.decodes[0].cancelled.wait(20)


def test_figures_that_nobody_measured_are_left_out(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The gateway ends at a stop string without a word from the node: where it ran is known, what it took is not."""
    answer = client.completions.create(model=MODEL, prompt="abcdefgh xyz", max_tokens=200, stop="ef")

    figures = answer.baton  # type: ignore[attr-defined]
    assert figures.keys() == {"request_id", "prefill_node", "decode_node", "placement_id", "seed", "attempts"}


def test_text_held_back_for_a_stop_string_comes_at_the_end(client: openai.OpenAI) -> None:
    """It was no stop string after all."""
    ids = _ids("abcd")
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=len(ids), stop="de")

    assert answer.choices[0].text == "abcd"


def test_a_stop_token_is_counted_but_not_shown(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """It ends the generation and is not part of it."""
    ids, node = _ids("ab!"), cluster.decodes[0]

    async def stop(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, ids)
        yield finished(request, node.node_id, generation.FINISH_REASON_STOP)

    node.script = stop
    extra = {"stop_token_ids": [ids[-1]]}
    answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=9, extra_body=extra)

    assert answer.choices[0].text == "ab"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert list(node.requests[0].sampling.stop_token_ids) == [ids[-1]]


def test_the_models_own_end_token_has_no_text(loop: Loop, cluster: FakeCluster) -> None:
    """The gateway learns it from the nodes; with ignore_eos it is an ordinary token."""
    ids, node = _ids("ab!"), cluster.decodes[0]
    cluster.eos_token_ids = ids[-1:]

    async def stop(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, ids)
        yield finished(request, node.node_id, generation.FINISH_REASON_STOP)

    node.script = stop
    with loop.running(cluster) as running:
        url = f"http://127.0.0.1:{running.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            texts = [
                client.completions.create(model=MODEL, prompt="x", extra_body={"ignore_eos": flag}).choices[0].text
                for flag in (False, True)
            ]

    assert texts == ["ab", "ab!"]


def test_every_parameter_reaches_the_node(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Under the proto's name."""
    client.completions.create(
        model=MODEL,
        prompt="hello",
        max_tokens=5,
        temperature=0.5,
        top_p=0.25,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"7": -3},
        seed=-9,
        user="someone",
        extra_body={"top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5, "min_tokens": 2, "metadata": {"a": "b"}},
    )

    assert cluster.decodes[0].requests[0].sampling == generation.SamplingParameters(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        seed=-9,
        repetition_penalty=1.5,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={7: -3},
        min_token_count=2,
        max_token_count=5,
    )


def test_log_probabilities_have_the_form_of_each_endpoint(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Chat lists objects with bytes, completions parallel lists with offsets."""
    ids, node = _ids("é!"), cluster.decodes[0]

    async def script(request: Any) -> AsyncIterator[Any]:
        other = generation.TokenLogprob(token_id=ids[1], logprob=-2)
        for index, token_id in enumerate(ids):
            yield tokens(
                index, [token_id], [generation.TokenLogprob(token_id=token_id, logprob=-1, alternatives=[other])]
            )
        yield finished(request, node.node_id)

    node.script = script
    text = client.completions.create(model=MODEL, prompt="x", logprobs=1).choices[0].logprobs
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1, stream=True
    )
    content = [
        entry for chunk in chat if (chunk.choices[0].logprobs) for entry in chunk.choices[0].logprobs.content or ()
    ]

    assert text is not None
    assert (text.tokens, text.token_logprobs) == (["é", "!"], [-1, -1])
    assert (text.text_offset, text.top_logprobs) == ([0, 1], [{"!": -2}, {"!": -2}])
    assert [entry.bytes for entry in content] == [list("é".encode()), [33]]
    assert content[0].top_logprobs[0].token == "!"
    assert node.requests[0].sampling.top_logprob_count == 1


def test_without_a_limit_a_chat_may_fill_the_context(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The node is told how much room there is."""
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])

    request = cluster.decodes[0].requests[0]
    assert request.sampling.max_token_count == 256 - len(request.prompt_token_ids)
    assert echo_token(request, 0) == request.prompt_token_ids[0]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("prompt", ["hello w", _ids("hello w")])
def test_an_echo_precedes_the_output_of_each_choice(client: openai.OpenAI, prompt: Any, is_stream: bool) -> None:
    """The prompt's text, also where tokens were given; usage counts only what was generated."""
    options: Any = {"model": MODEL, "prompt": [prompt, prompt], "echo": True, "n": 2, "max_tokens": 1}
    texts = dict.fromkeys(range(4), "")
    if is_stream:
        for chunk in client.completions.create(**options, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    else:
        answer = client.completions.create(**options)
        texts = {choice.index: choice.text for choice in answer.choices}
        assert answer.usage.completion_tokens == 4

    assert texts == dict.fromkeys(range(4), "hello whello")


def test_an_echo_comes_even_if_nothing_is_generated(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """With the reason for the end."""

    async def stop(request: Any) -> AsyncIterator[Any]:
        yield finished(request, "decode-0", generation.FINISH_REASON_STOP)

    cluster.decodes[0].script = stop
    (chunk,) = client.completions.create(model=MODEL, prompt="hello", echo=True, stream=True)

    assert (chunk.choices[0].text, chunk.choices[0].finish_reason) == ("hello", "stop")
