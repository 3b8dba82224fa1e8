"""What logs and metrics learn of each request, whatever becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton.gateway.call import Call
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class Traffic:
    """Watches requests of both APIs."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Make it.

        Args:
            metrics: Where requests are counted.
            clock: The event loop's.
        """
        self._metrics = metrics
        self._clock = clock

    @contextmanager
    def watch(self, call: Call) -> Iterator[None]:
        """Watch one request from here to its end; its `status` is then what the client saw of it."""
        call.arrival_seconds = self._clock()
        self._metrics.add_active_requests(1)
        try:
            yield
        finally:
            self._metrics.add_active_requests(-1)
            seconds = self._clock() - call.arrival_seconds
            self._metrics.record_request(seconds, call.route or "unknown", call.status)
            if log.isEnabledFor(logging.DEBUG):
                log.debug(_line(call, seconds))


def _line(call: Call, seconds: float) -> str:
    first = call.first_token_seconds
    first_text = f"{first - call.arrival_seconds:.4f}" if first is not None else "-"
    return (
        f"request_ended request={call.request_id or '-'} key={call.key_name or '-'} route={call.route or '-'} "
        f"status={call.status} error={call.error_code or '-'} seconds={seconds:.4f} first_token_seconds={first_text} "
        f"prompt_tokens={call.num_prompt_tokens} completion_tokens={call.num_completion_tokens}"
    )
