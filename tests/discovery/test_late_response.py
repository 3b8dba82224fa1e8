"""A response of the Kubernetes API that comes when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from baton.discovery.endpoints import ServiceTarget
from baton.discovery.kubernetes_api import KubernetesEndpointApi

kubernetes = pytest.importorskip("kubernetes.client")

TIMEOUT_SECONDS = 30.0


class Response:
    """A response, of which is seen whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def shutdown(self) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Take note."""
        self.closed.set()


@pytest.mark.parametrize("call", ["watch", "list"])
def test_a_response_that_comes_after_its_caller_has_gone_is_closed(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket would stay until the garbage collector comes; the event loop of a watch may have ended by then."""
    api = KubernetesEndpointApi(kubernetes.Configuration(), ServiceTarget("decode", "default", 8010))
    is_asked, may_answer, response = threading.Event(), threading.Event(), Response()

    def answer(*_arguments: Any, **_options: Any) -> Response:
        is_asked.set()
        assert may_answer.wait(TIMEOUT_SECONDS)
        return response

    monkeypatch.setattr(api, "_open", answer)

    async def give_up() -> None:
        asking = api.list_slices() if call == "list" else anext(api.watch_slices("1", 60.0))
        task = asyncio.ensure_future(asking)
        assert await asyncio.to_thread(is_asked.wait, TIMEOUT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if call == "list":  # the loop waits for its own threads when it ends
            may_answer.set()

    asyncio.run(give_up())
    may_answer.set()

    assert response.closed.wait(TIMEOUT_SECONDS)
