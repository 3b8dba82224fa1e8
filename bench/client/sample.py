"""What is known of one request after it: the raw sample that every metric is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


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
