"""One answer of `baton chat` and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.capacity.table import format_seconds
from baton.cli.completion_stream import StreamPiece
from baton.cli.quantities import format_bytes


class Answer:
    """Gathers the pieces of an answer with their times.

    TTFT is what the client saw. The decode rate is what the decode node measured: pieces may reach the client in
    bursts. The client's own times stand in where the gateway reports none.
    """

    def __init__(self, began_seconds: float) -> None:
        self.text = ""
        self._began_seconds = began_seconds
        self._first_seconds: float | None = None
        self._last_seconds = began_seconds
        self._num_pieces = 0
        self._usage: Mapping[str, object] = {}
        self._placement: Mapping[str, object] = {}

    def add(self, piece: StreamPiece, now_seconds: float) -> None:
        """Take a piece that arrived now (`time.monotonic`)."""
        if piece.text:
            if self._first_seconds is None:
                self._first_seconds = now_seconds
            self._last_seconds = now_seconds
            self._num_pieces += 1
        self.text += piece.text
        self._usage = piece.usage or self._usage
        self._placement = piece.placement or self._placement

    def summary_lines(self) -> Sequence[str]:
        """Return the speed, and the placement where the gateway reported one."""
        speed = self._speed()
        return [speed, *placement_lines(self._placement)] if self._placement else [speed]

    def _speed(self) -> str:
        if self._first_seconds is None:
            return "no text"
        num_tokens = int(number(self._usage, "completion_tokens")) or self._num_pieces
        parts = [f"TTFT {format_seconds(self._first_seconds - self._began_seconds)}", f"{num_tokens} tokens"]
        decode_seconds = number(self._placement, "decode_seconds") or self._last_seconds - self._first_seconds
        if num_tokens > 1 and decode_seconds > 0:
            parts.append(f"{(num_tokens - 1) / decode_seconds:.1f} tokens/s")
        return " · ".join(parts)


def placement_lines(placement: Mapping[str, object]) -> Sequence[str]:
    """Return where an answer ran, and what its transfer cost, from the `baton` object of the stream."""
    decode = str(placement.get("decode_node") or "?")
    prefill = str(placement.get("prefill_node") or decode)
    num_cached = max(number(placement, "decode_cached_tokens"), number(placement, "prefill_cached_tokens"))
    cached = f", {int(num_cached)} tokens cached" if num_cached else ""
    if placement.get("fallback_reason"):
        return [f"prefill on {decode} after a fallback: {placement['fallback_reason']}{cached} · decode on {decode}"]
    if placement.get("pull_node"):
        num_bytes, seconds = number(placement, "kv_bytes"), number(placement, "pull_seconds")
        pulled = f"{int(number(placement, 'pulled_tokens'))} tokens from the cache of {placement['pull_node']}"
        pull = f"{pulled}, KV {format_bytes(num_bytes)} in {format_seconds(seconds)}"
        return [f"prefill and decode on {decode}{cached}", pull]
    if prefill == decode:
        return [f"prefill and decode on {decode}{cached}"]
    transfer, exposed = number(placement, "transfer_seconds"), number(placement, "exposed_seconds")
    num_resumes = int(number(placement, "kv_resumes"))
    resumed = f", after {num_resumes} of its streams had broken" if num_resumes else ""
    cost = f"in {format_seconds(transfer)}, {hidden_share(transfer, exposed):.0%} hidden behind computation"
    return [
        f"prefill on {prefill} → decode on {decode}{cached}{resumed}",
        f"KV {format_bytes(number(placement, 'kv_bytes'))} {cost if transfer else 'faster than can be measured'}",
    ]


def hidden_share(transfer_seconds: float, exposed_seconds: float) -> float:
    """Return the part of a transfer that computation hid, 0 to 1: 1 - exposed / transfer; 1 where nothing was sent."""
    if transfer_seconds <= 0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - exposed_seconds / transfer_seconds))


def number(values: Mapping[str, object], key: str) -> float:
    """Return a number of a JSON object, 0 where it has none."""
    value = values.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0
