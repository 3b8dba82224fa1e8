"""Must show 5, with processes: prefill or decode node killed by SIGKILL at any message of a KV stream.

Each kill costs the start of a process, so there are none by default; `BATON_FAULTS=1000` kills twenty.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from checkpoints import checkpoint
from system.client import Ask, open_grpc
from system.cluster import Cluster
from system.faults.scenario import NOTICED_SECONDS, FaultFree, uncached
from system.kv_faults.proxy import HOST, Fault, FaultProxy, Kind
from system.kv_faults.test_kv_faults import NUM_FAULTS
from system.plan import free_ports

NUM_KILLS = min(20, NUM_FAULTS // 100)
"""Of each node."""
ASK = Ask(tuple((7 * place) % 500 + 3 for place in range(150)), 12)
_PREFILL = {"max_step_tokens": "16", "mock_step_seconds": "0.05"}
"""So the prompt is computed in ten passes, half a second together, and sent in as many frames at least."""
_NUM_MESSAGES = 10


class Proxies:
    """Two proxies, one per implementation, served by a thread of their own.

    Args:
        servers: Port of the server behind each proxy, by its own port.
    """

    def __init__(self, servers: dict[int, int]) -> None:
        self._servers = servers
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._is_serving = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._all: list[FaultProxy] = []
        self._has_killed = False

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve as long as the context lasts."""
        self._thread.start()
        try:
            assert self._is_serving.wait(NOTICED_SECONDS)
            yield
        finally:
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join()
            self._loop.close()

    def arm(self, fault: Fault | None) -> None:
        """Have one fault happen, by whichever implementation the stream comes."""
        self._has_killed = False
        for proxy in self._all:
            proxy.arm(fault)

    def on_kill(self, sender: str, cluster: Cluster) -> None:
        """Say what is killed."""

        def kill(is_sender: bool) -> None:
            if not self._has_killed:  # the next attempt may come by the other implementation
                self._has_killed = True
                cluster.kill(sender if is_sender else receiver_of(cluster))

        for proxy in self._all:
            proxy.on_kill_sender = lambda: kill(True)
            proxy.on_kill_receiver = lambda: kill(False)

    @property
    def has_injected(self) -> bool:
        """Return whether the fault has happened."""
        return any(proxy.injected_at is not None for proxy in self._all)

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            for port, server_port in self._servers.items():
                self._all.append(await stack.enter_async_context(FaultProxy(server_port, port=port)))
            self._is_serving.set()
            await self._is_over.wait()


@contextmanager
def proxied_cluster() -> Iterator[tuple[Cluster, Proxies]]:
    """Run a prefill node behind proxies of this process, and two decode nodes."""
    ports = free_ports(("grpc", "fast", "fast server"))
    addresses = {
        "advertise_address": f"{HOST}:{ports['grpc']}",
        "fast_advertise_address": f"{HOST}:{ports['fast']}",
        "fast_port": str(ports["fast server"]),
    }
    settings = {
        "prefill": {**_PREFILL, **addresses},
        "decode-1": {"kv_transport": "grpc"},
        "router": {"prefill_policy": "remote", "report_interval_seconds": "0.05"},
    }
    cluster = Cluster(checkpoint("llama"), prefill=("mock",), decode=("mock",) * 2, settings=settings)
    grpc_server_port = int(cluster.address_of("prefill-0").rpartition(":")[2])
    proxies = Proxies({ports["grpc"]: grpc_server_port, ports["fast"]: ports["fast server"]})
    with proxies.serving(), cluster:
        yield cluster, proxies


def receiver_of(cluster: Cluster) -> str:
    """Return the decode node that takes KV in, once it has reported that."""
    found: list[str] = []

    def find() -> bool:
        found.extend(
            name
            for name, state in cluster.nodes().items()
            if name.startswith("decode") and state.load.waiting_request_count + state.load.running_request_count
        )
        return bool(found)

    cluster.wait_until(find, "a decode node receives", NOTICED_SECONDS)
    return found[0]


@pytest.mark.skipif(NUM_KILLS == 0, reason="asked for by BATON_FAULTS=100 or more")
@pytest.mark.parametrize("kind", ["kill_sender", "kill_receiver"])
def test_requests_survive_the_death_of_a_process_at_any_message(kind: Kind) -> None:
    """Their tokens are right, and afterwards no node holds anything."""
    seconds: list[float] = []
    reasons = Counter[tuple[str, ...]]()
    with proxied_cluster() as (cluster, proxies):
        expected = FaultFree().outcome(cluster, ASK)
        proxies.on_kill("prefill-0", cluster)
        for number in range(NUM_KILLS):
            proxies.arm(Fault(kind, number % _NUM_MESSAGES, number, 0.0))
            outcome = open_grpc(cluster, uncached(ASK)).outcome()

            assert proxies.has_injected, (kind, number)
            assert (outcome.error, outcome.token_ids) == ("", expected.token_ids), (kind, number)
            seconds.append(outcome.seconds)
            reasons[tuple(outcome.placement.kv_break_reasons)] += 1
            proxies.arm(None)
            cluster.heal()

    print(f"\n{kind}: {NUM_KILLS} processes killed, streams broke with {dict(reasons)}, slowest {max(seconds):.2f} s")
