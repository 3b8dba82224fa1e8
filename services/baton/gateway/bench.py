"""POST /bench/chat/completions: a chat completion for measurements, after exo's bench endpoint."""

from __future__ import annotations

import time

from baton.gateway.bench_format import BenchFormat, Figures
from baton.gateway.bench_schema import NEUTRAL_VALUES, BenchBody, bench_sampling, decode_bench_body
from baton.gateway.bench_stats import generation_stats, power_usage
from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.instances import Instances
from baton.gateway.openai_messages import chat_messages
from baton.gateway.prompt_rates import PromptRates
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest, GenerationResult
from baton.gateway.routes import Route
from baton.gateway.single_answer import answer_single
from baton.telemetry import names

BENCH_PATH = "/bench/chat/completions"


class Bench:
    """Answers benchmark requests.

    Args:
        instances: Placements that they are held to. Other requests go where the router sends them.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._rates = PromptRates()

    @property
    def route(self) -> Route:
        """Return how its path is served."""
        return Route(self.answer_bench, names.SPAN_CHAT, BenchBody, NEUTRAL_VALUES)

    async def answer_bench(self, generator: Generator, call: Call, response: HttpResponse) -> None:
        """Answer a chat completion for measurements: cold caches, exactly `max_tokens` tokens, and its figures.

        Raises:
            ApiError: Naming the parameter that cannot be served.
            BatonError: If it cannot be generated.
        """
        body = decode_bench_body(call.body)
        prompt = await generator.prepare(self._request(body, call))

        def figures(result: GenerationResult) -> Figures:
            return Figures(generation_stats(prompt, result, self._rates), power_usage(result.summary))

        has_usage = bool(body.stream_options and body.stream_options.include_usage)
        form = BenchFormat(call.request_id, body.model, int(time.time()), has_usage=has_usage, figures=figures)
        await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))

    def _request(self, body: BenchBody, call: Call) -> GenerationRequest:
        return GenerationRequest(
            request_id=generation_name(call.request_id),
            model=body.model,
            prompt=ChatPrompt(chat_messages(body.messages)),
            sampling=bench_sampling(body),
            bypass_prefix_cache=not body.use_prefix_cache,
            pins=self._instances.pins(body.model),
        )
