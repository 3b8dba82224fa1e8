"""What is known of a request after it, and a run's numbers from these samples; METHODOLOGY.md defines each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request. Times are seconds after the beginning of the run, by the client's monotonic clock."""

    session: int
    turn: int
    scheduled_seconds: float
    """When it should have been sent."""
    sent_seconds: float
    """When its first byte was written, the connection being open."""
    finished_seconds: float
    """When the answer was complete, or failed."""
    token_seconds: tuple[float, ...]
    """When each event with output was read: 1 per token on servers that send each token alone."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the server did not compute, as it says."""
    num_completion_tokens: int
    """As the server counts; the number of events where it does not."""
    max_tokens: int
    prefill_node: str = ""
    """Node that computed the prompt; empty where the server does not tell."""
    decode_node: str = ""
    """Node that generated; empty where the server does not tell."""
    error: str | None = None
    """Why it failed; None where it did not."""

    @property
    def is_ok(self) -> bool:
        """Whether the answer is complete and has output."""
        return self.error is None and bool(self.token_seconds)

    @property
    def ttft_seconds(self) -> float:
        """Time to first token; the request must be ok."""
        return self.token_seconds[0] - self.sent_seconds

    @property
    def e2e_seconds(self) -> float:
        """From sending until the answer was complete."""
        return self.finished_seconds - self.sent_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per output token after the first; None for 1 token."""
        if self.num_completion_tokens < 2:
            return None
        return (self.token_seconds[-1] - self.token_seconds[0]) / (self.num_completion_tokens - 1)

    @property
    def itl_seconds(self) -> list[float]:
        """Gaps between consecutive events with output."""
        return [after - before for before, after in pairwise(self.token_seconds)]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A metric over all requests (or gaps), in the metric's unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a request must keep to be good; None where anything is good enough. Seconds."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None

    def is_kept_by(self, sample: RequestSample) -> bool:
        """Return whether a request is complete and within every bound. One token keeps any TPOT."""
        return sample.is_ok and all(
            bound is None or value is None or value <= bound
            for value, bound in (
                (sample.ttft_seconds, self.ttft_seconds),
                (sample.tpot_seconds, self.tpot_seconds),
                (sample.e2e_seconds, self.e2e_seconds),
            )
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's numbers. Distributions are None where no request has the metric."""

    num_requests: int
    num_failed: int
    num_short: int
    """Complete, but with fewer tokens than asked for."""
    duration_seconds: float
    """From the first request sent until the last finished."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    good_requests_per_second: float
    good_share: float
    """Good requests / all requests, 0 to 1."""
    max_in_flight: int
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    itl_seconds: Distribution | None
    e2e_seconds: Distribution | None
    lateness_seconds: Distribution | None
    """Sending behind schedule: above a few milliseconds, the client or its limit on requests in flight holds back."""


def summarize(samples: Sequence[RequestSample], service_level: ServiceLevel | None = None) -> Summary:
    """Return a run's numbers; raise ValueError for no `samples`. Without a service level all complete ones are good."""
    if not samples:
        raise ValueError("a run without requests has no numbers")
    service_level = service_level or ServiceLevel()
    done = [sample for sample in samples if sample.is_ok]
    begin = min(sample.sent_seconds for sample in samples)
    duration_seconds = max(sample.finished_seconds for sample in samples) - begin
    prompt_tokens = sum(sample.num_prompt_tokens for sample in done)
    completion_tokens = sum(sample.num_completion_tokens for sample in done)
    num_good = sum(service_level.is_kept_by(sample) for sample in samples)
    return Summary(
        num_requests=len(samples),
        num_failed=len(samples) - len(done),
        num_short=sum(sample.num_completion_tokens < sample.max_tokens for sample in done),
        duration_seconds=duration_seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(sample.num_cached_tokens for sample in done),
        completion_tokens=completion_tokens,
        requests_per_second=_rate(len(done), duration_seconds),
        output_tokens_per_second=_rate(completion_tokens, duration_seconds),
        total_tokens_per_second=_rate(prompt_tokens + completion_tokens, duration_seconds),
        good_requests_per_second=_rate(num_good, duration_seconds),
        good_share=num_good / len(samples),
        max_in_flight=max(count for _, count in in_flight(samples)),
        ttft_seconds=distribution(sample.ttft_seconds for sample in done),
        tpot_seconds=distribution(sample.tpot_seconds for sample in done if sample.tpot_seconds is not None),
        itl_seconds=distribution(gap for sample in done for gap in sample.itl_seconds),
        e2e_seconds=distribution(sample.e2e_seconds for sample in done),
        lateness_seconds=distribution(sample.sent_seconds - sample.scheduled_seconds for sample in samples),
    )


def distribution(values: Iterable[float]) -> Distribution | None:
    """Return mean, percentiles (interpolated linearly between the nearest ranks) and maximum; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = np.percentile(ordered, (50, 90, 95, 99)).tolist()
    return Distribution(len(ordered), sum(ordered) / len(ordered), p50, p90, p95, p99, max=ordered[-1])


def in_flight(samples: Iterable[RequestSample]) -> list[tuple[float, int]]:
    """Return steps (seconds, requests in flight from then on), ascending; an end comes before a beginning."""
    changes = sorted(
        change for sample in samples for change in ((sample.sent_seconds, 1), (sample.finished_seconds, -1))
    )
    return list(zip((at for at, _ in changes), accumulate(change for _, change in changes), strict=True))


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
