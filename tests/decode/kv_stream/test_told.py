"""What clients and traces are told of a stream: what carried it, how long its parts took, and why it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.telemetry import names
from baton.wire.quantities import duration_from_seconds, seconds_from_duration
from decode.pair import PATIENT, Damage, Pair, generate, intact, request_of, with_pair
from decode.test_generation import dying, flipped
from engine.rig import LAYOUT, expected_tokens, prompt_of
from telemetry.span_exporting import exporting_to

PROMPT = prompt_of(41)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return where finished spans go."""
    exporter = InMemorySpanExporter()
    with exporting_to(exporter, monkeypatch):
        yield exporter


def told(exporter: InMemorySpanExporter) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Return the attributes and the events of all spans."""
    spans = exporter.get_finished_spans()
    attributes = {key: value for span in spans for key, value in (span.attributes or {}).items()}
    return attributes, [(event.name, dict(event.attributes or {})) for span in spans for event in span.events]


@pytest.mark.parametrize("transport", ["fast", "grpc", "shared"])
def test_a_trace_tells_what_carried_a_stream_and_each_of_its_parts(
    exported: InMemorySpanExporter, transport: TransportChoice
) -> None:
    """Its formats too; who looks for lost time reads it there."""

    async def client(pair: Pair) -> None:
        assert (await generate(pair, request_of(PROMPT))).token_ids == expected_tokens(PROMPT, 8)

    with_pair(client, transport=transport)

    attributes, events = told(exported)
    kinds = [name for name, _ in events]
    assert attributes[names.KV_TRANSPORT] == transport
    assert attributes[names.KEY_WIRE_DTYPE] == attributes[names.VALUE_WIRE_DTYPE] == LAYOUT.dtype.value
    assert kinds.count(names.EVENT_FRAME_RECEIVED) >= 2
    assert names.EVENT_FIRST_TOKEN in kinds
    assert names.EVENT_KV_BROKEN not in kinds


def test_the_sender_s_trace_tells_the_way_too(exported: InMemorySpanExporter) -> None:
    """Its span is the server's."""

    async def client(pair: Pair) -> None:
        await generate(pair, request_of(PROMPT))

    with_pair(client, transport="fast")

    served = [each for each in exported.get_finished_spans() if each.kind is SpanKind.SERVER]
    sent = [each.attributes for each in served if each.name.endswith("PrefillService/Prefill")]
    assert [attributes and attributes[names.KV_TRANSPORT] for attributes in sent] == ["fast"]


@pytest.mark.parametrize(("damage", "reason"), [(flipped, "KV_STREAM_BROKEN"), (dying, "INTERNAL")])
def test_a_trace_tells_why_a_stream_broke_and_that_the_prompt_was_computed_here(
    exported: InMemorySpanExporter, damage: Damage, reason: str
) -> None:
    """By the same word as the summary."""

    async def client(pair: Pair) -> None:
        assert (await generate(pair, request_of(PROMPT))).summary.fallback_reason == reason

    with_pair(client, damage=damage, timeouts=PATIENT)

    _, events = told(exported)
    broken = [attributes for name, attributes in events if name == names.EVENT_KV_BROKEN]
    assert broken
    assert broken[0][names.REASON] == reason
    assert broken[0][names.PREFILL_NODE_ID]
    assert (names.EVENT_FALLBACK, {names.REASON: reason}) in events


def test_a_summary_tells_how_long_the_parts_of_a_prefill_took() -> None:
    """Where its KV was on its way, and for how long somebody waited for it; of a local prefill there is none."""

    async def slow(responses: Any) -> Any:
        async for response in intact(responses):
            if response.HasField("summary"):
                await asyncio.sleep(0.05)
                response.summary.queue_duration.CopyFrom(duration_from_seconds(0.5))
            yield response

    async def client(pair: Pair) -> None:
        summary = (await generate(pair, request_of(PROMPT))).summary
        assert seconds_from_duration(summary.transfer_duration) > 0
        assert summary.HasField("prefill_duration")
        assert summary.HasField("exposed_duration")
        assert seconds_from_duration(summary.queue_duration) >= 0.5
        local = (await generate(pair, request_of(PROMPT, prefill_node_id="", request_id="local"))).summary
        assert not seconds_from_duration(local.transfer_duration)

    with_pair(client, damage=slow, timeouts=PATIENT)
