"""POST /bench/chat/completions: a chat completion for measurements, and its figures, after exo's bench endpoint."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from baton.gateway.access.admission import RequestContext, generation_name
from baton.gateway.api.answer import DONE, AnswerJob, FinishedChoice, encode, send_answer
from baton.gateway.api.body import FIELD_NAMES, sampling_parameters, token_limit
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.exo.instances import Instances
from baton.gateway.api.openai.chat import ChatFormat
from baton.gateway.api.openai.logprobs import TokenBytes
from baton.gateway.api.openai.messages import chat_messages
from baton.gateway.api.openai.schema import ChatAnswer, ChatBody, CompletionStreamOptions, Message, StreamOptions
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import ChatPrompt, GenerationRequest, GenerationResult, PreparedPrompt
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.quantities import computing_cache, seconds_from_duration

MAX_PROMPTS = 4096
"""Kept; the prompt not used for longest is forgotten first."""


class PromptRates:
    """Remembers tokens per second by prompt. Holds digests, no tokens."""

    def __init__(self) -> None:
        self._rates: OrderedDict[bytes, float] = OrderedDict()

    def store(self, model_revision_digest: str, token_ids: Sequence[int], tokens_per_second: float) -> None:
        """Keep the rate of the run that computed a prompt, in place of an earlier one."""
        key = _key(model_revision_digest, token_ids)
        self._rates[key] = tokens_per_second
        self._rates.move_to_end(key)
        if len(self._rates) > MAX_PROMPTS:
            self._rates.popitem(last=False)

    def find(self, model_revision_digest: str, token_ids: Sequence[int]) -> float | None:
        """Return the rate of the run that computed a prompt; None if it is not known."""
        key = _key(model_revision_digest, token_ids)
        if key in self._rates:
            self._rates.move_to_end(key)
        return self._rates.get(key)


def _key(model_revision_digest: str, token_ids: Sequence[int]) -> bytes:
    digest = blake2b(model_revision_digest.encode(), digest_size=16)
    digest.update(array("i", token_ids).tobytes())
    return digest.digest()


CacheHit = Literal["none", "partial", "exact"]
"""How much of a prompt was in the prefix cache of the node that computed it."""


class MemorySize(msgspec.Struct, rename={"num_bytes": "inBytes"}):
    """exo's form of a size."""

    num_bytes: int


class GenerationStats(msgspec.Struct):
    """exo's `generation_stats`: all numbers, never null."""

    prompt_tps: float
    """Prompt tokens that were computed per second of prefill; of an exact hit, the rate of the run that computed it."""
    generation_tps: float
    """Tokens after the first per second between first and last; 0 for a single one."""
    prompt_tokens: int
    generation_tokens: int
    peak_memory_usage: MemorySize
    """Of the node whose peak is larger, where two worked on the request."""
    prefix_cache_hit: CacheHit


class PowerUsage(msgspec.Struct, omit_defaults=True):
    """exo's `power_usage`, of the machines that worked on the request, in joules; what no sensor covers is absent."""

    prefill_energy_joules: float | None = None
    generation_energy_joules: float | None = None


def generation_stats(prompt: PreparedPrompt, result: GenerationResult, rates: PromptRates) -> GenerationStats:
    """Return the figures of a request that has ended. `rates` gives exact hits' rate, and learns from filled caches."""
    summary = result.summary
    num_uncached = max(0, result.num_prompt_tokens - computing_cache(summary))
    prompt_tps = _rate(num_uncached, seconds_from_duration(summary.prefill_duration))
    hit: CacheHit = "none" if num_uncached == result.num_prompt_tokens else "partial"
    if not prompt.request.bypass_prefix_cache:
        stored = rates.find(prompt.model_revision_digest, prompt.token_ids) if hit == "partial" else None
        # A cache holds full blocks, and never the last token, whose logits are needed.
        if stored is not None and num_uncached <= prompt.block_tokens:
            hit, prompt_tps = "exact", stored
        elif prompt_tps > 0:
            rates.store(prompt.model_revision_digest, prompt.token_ids, prompt_tps)
    return GenerationStats(
        prompt_tps=prompt_tps,
        generation_tps=_rate(summary.completion_token_count - 1, seconds_from_duration(summary.decode_duration)),
        prompt_tokens=result.num_prompt_tokens,
        generation_tokens=result.num_completion_tokens,
        peak_memory_usage=MemorySize(
            max(summary.decode_peak_memory_byte_count, summary.prefill_peak_memory_byte_count)
        ),
        prefix_cache_hit=hit,
    )


def power_usage(summary: PlacementSummary) -> PowerUsage | None:
    """Return the energy of a request; None where nothing of it is known."""
    has_prefill, has_decode = (summary.HasField(f"{phase}_energy_joules") for phase in ("prefill", "decode"))
    if not has_prefill and not has_decode:
        return None
    return PowerUsage(
        prefill_energy_joules=summary.prefill_energy_joules if has_prefill else None,
        generation_energy_joules=summary.decode_energy_joules if has_decode else None,
    )


def _rate(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if num_tokens > 0 and seconds > 0 else 0.0


class BenchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What exo's bench endpoint takes of a chat completion; bounds are those of generation.proto."""

    model: str
    messages: list[Message]
    max_tokens: int
    """Tokens that are generated, no more and no fewer: the model's end tokens cannot be chosen."""
    use_prefix_cache: bool | None = None
    """Whether prefix caches are read and filled; by default no node does, nor shares work between equal prompts."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None


class BenchAnswer(ChatAnswer, kw_only=True):
    """A chat completion and its figures."""

    generation_stats: GenerationStats
    power_usage: PowerUsage | None = None


class BenchEndpoint:
    """Answers benchmark requests, which are held to the placements of `instances`."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._rates = PromptRates()

    async def answer_bench(self, generator: TextGenerator, exchange: Exchange) -> None:
        """Answer a chat completion on cold caches, and its figures; raise ApiError if it is not served, BatonError."""
        body: BenchBody = exchange.body
        prompt = await generator.prepare(self._request(body, exchange.context), exchange.context)

        def figures(result: GenerationResult) -> Mapping[str, msgspec.Struct]:
            power = power_usage(result.summary)
            stats = {"generation_stats": generation_stats(prompt, result, self._rates)}
            return stats if power is None else {**stats, "power_usage": power}

        job = AnswerJob(exchange.context, [prompt])
        form = BenchFormat(job, body, prompt.text.detokenizers.token_bytes, figures)
        await send_answer(exchange.response, generator, job, form, is_stream=bool(body.stream))

    def _request(self, body: BenchBody, context: RequestContext) -> GenerationRequest:
        # End tokens are masked before the last one, which the limit ends anyway.
        sampling, num_tokens = sampling_parameters(body), token_limit("max_tokens", body.max_tokens)
        sampling.min_token_count = sampling.max_token_count = num_tokens
        return GenerationRequest(
            request_id=generation_name(context.request_id),
            model=body.model,
            prompt=ChatPrompt(chat_messages(body.messages)),
            sampling=sampling,
            field_names=FIELD_NAMES,
            bypass_prefix_cache=not body.use_prefix_cache,
            pins=self._instances.pins(body.model),
        )


class BenchFormat(ChatFormat):
    """Writes one chat answer and its figures; the text is that of the tokens, nothing is parsed out of it."""

    def __init__(
        self,
        job: AnswerJob,
        body: BenchBody,
        token_bytes: TokenBytes,
        figures: Callable[[GenerationResult], Mapping[str, msgspec.Struct]],
    ) -> None:
        """Begin an answer. `figures` returns what is told beside the text, by its names."""
        options = CompletionStreamOptions(body.stream_options.include_usage) if body.stream_options else None
        chat = ChatBody(model=body.model, messages=body.messages, stream_options=options)
        super().__init__(job, chat, token_bytes, lambda: None)
        self._figures = figures

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:
        """Return the finish reason, the usage if it was asked for, the figures as comments, and the end."""
        events = super().finish(index, result, results).removesuffix(DONE)
        figures = [b": %b %b\n\n" % (name.encode(), encode(told)) for name, told in self._figures(result).items()]
        return b"".join([events, *figures, DONE])

    def _body(self, choices: Sequence[FinishedChoice], bodies: Sequence[dict[str, object]]) -> dict[str, object]:
        return {**super()._body(choices, bodies), **self._figures(choices[0].result)}
