"""A cluster of mocks behind proxies, what clients ask of it, and what is done to it, all drawn from a seed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from checkpoints import checkpoint
from system.cluster import Cluster
from system.histories.links import Links
from system.histories.oracle import MockOracle
from system.histories.recording import History, Wish, ask
from system.plan import HOST, free_ports

SHAPE = "llama-3.1-8b"
_MODEL = {"mock_shape": SHAPE, "mock_hardware": "m3-ultra", "dtype": "bfloat16"}
"""A token every 26 ms, a prompt token every 0.7 ms: long enough for something to happen in between."""
_PREFILL, _DECODE = ("prefill-0", "prefill-1"), ("decode-0", "decode-1")
_FAST = tuple(f"{name}-fast" for name in _PREFILL)
_SERVICES = ("gateway", "router", "cache-index")

_PAUSE_SECONDS, _RETRY_SECONDS = 0.2, 1.0
"""What a client waits before it asks again, and after a failure: clients do not keep a recovering cluster busy."""

Kind = Literal["kill", "stop", "drain", "cut"]
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "drain": signal.SIGTERM}


@dataclass(frozen=True)
class Fault:
    """What is done to a process."""

    kind: Kind
    """What."""
    process: str
    """To whom; "client": the connections of clients to the gateway."""
    after_seconds: float
    """When, after the fault before it in its round, or since everything has been well."""
    lasting_seconds: float
    """Until it is undone at the earliest: the process started again, or let go on."""


@dataclass(frozen=True)
class Script:
    """What happens in one history."""

    rounds: Sequence[Sequence[Fault]]
    """Faults, each beside the others of its round; a round begins when everything is well again."""
    clients: Sequence[Sequence[Wish]]
    """What each client asks for, one after the other, from the beginning again until all rounds are over."""

    @property
    def faults(self) -> Sequence[Fault]:
        """All of them."""
        return [fault for faults in self.rounds for fault in faults]


def drawn_script(seed: str, oracle: MockOracle) -> Script:
    """Return what a seed draws: two to four clients, and one or two rounds of one or two faults."""
    chance = random.Random(seed)
    opening = [chance.randrange(3, oracle.vocabulary_size) for _ in range(64)]
    clients = [
        [_drawn_wish(chance, oracle, opening) for _ in range(chance.randint(3, 5))] for _ in range(chance.randint(2, 4))
    ]
    return Script([_drawn_round(chance) for _ in range(chance.choice((1, 1, 2)))], clients)


def _drawn_round(chance: random.Random) -> Sequence[Fault]:
    first, second = _drawn_fault(chance), _drawn_fault(chance)
    return (first, second) if chance.random() < 0.3 and first.process != second.process else (first,)


def _drawn_fault(chance: random.Random) -> Fault:
    kind: Kind = chance.choice(("kill", "kill", "stop", "stop", "drain", "cut", "cut"))
    process = chance.choice((*_DECODE, *_DECODE, *_PREFILL, *(("client",) if kind == "cut" else _SERVICES)))
    return Fault(kind, process, chance.uniform(0.1, 1.5), chance.uniform(0.2, 2.5) if kind != "cut" else 0.0)


def _drawn_wish(chance: random.Random, oracle: MockOracle, opening: Sequence[int]) -> Wish:
    own = [chance.randrange(3, oracle.vocabulary_size) for _ in range(chance.randint(3, 200))]
    prompt = [*opening, *own] if chance.random() < 0.4 else own
    return Wish(
        api="grpc" if chance.random() < 0.5 else "rest",
        prompt=prompt,
        expected=oracle.say(prompt, chance.randint(5, 40)),
        seed=chance.randrange(1 << 31),
        temperature=chance.choice((0.0, 0.8)),
        choices=chance.choice((1, 1, 1, 2)),
        request_id=f"own-{chance.getrandbits(64):x}" if chance.random() < 0.3 else "",
        leaves_after=chance.randint(1, 10) if chance.random() < 0.1 else 0,
    )


class Scene:
    """Two prefill and two decode nodes; what nodes and clients reach, they reach by proxies."""

    def __init__(self) -> None:
        self.oracle = MockOracle(checkpoint("llama"), SHAPE)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        fast_ports = free_ports(_FAST)
        self._links = self._stack.enter_context(Links(("client-http", "client-grpc", *_PREFILL, *_DECODE, *_FAST)))
        settings = {name: {**_MODEL, "advertise_address": self._links.address_of(name)} for name in _PREFILL + _DECODE}
        for name in _PREFILL:
            fast = f"{name}-fast"
            own = {"fast_port": str(fast_ports[fast]), "fast_advertise_address": self._links.address_of(fast)}
            settings[name] |= own
        settings["decode-1"]["kv_transport"] = "grpc"
        settings["router"] = {"prefill_policy": "remote", "drain_seconds": "1"}
        settings["gateway"] = {"drain_seconds": "30", "router_timeout_seconds": "30"}  # a busy machine takes long
        self.cluster = Cluster(checkpoint("llama"), prefill=("mock",) * 2, decode=("mock",) * 2, settings=settings)
        addresses = {name: self.cluster.address_of(name) for name in _PREFILL + _DECODE}
        addresses |= {"client-http": f"{HOST}:{self.cluster.http_address[1]}", "client-grpc": self.cluster.grpc_address}
        ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
        self._links.lead_to({**ports, **fast_ports})
        self._stack.enter_context(self.cluster)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def play(self, script: Script, **about: object) -> History:
        """Return what clients saw of a script; afterwards everything serves again, and no node has work."""
        history = History(decode_nodes=list(_DECODE), **about)
        is_over = threading.Event()
        clients = [
            threading.Thread(target=self._run_client, args=(history, f"client-{index}", wishes, is_over), daemon=True)
            for index, wishes in enumerate(script.clients)
        ]
        for client in clients:
            client.start()
        for faults in script.rounds:
            for fault in faults:
                time.sleep(fault.after_seconds)  # at any moment of what the clients do
                self._inflict(history, fault)
            self._undo(history, faults)
        is_over.set()
        for client in clients:
            client.join()
        self.cluster.heal()
        return history

    def _run_client(self, history: History, name: str, wishes: Sequence[Wish], is_over: threading.Event) -> None:
        """Ask for one thing after the other; once more, if that was sooner done than the faults."""
        number = 0
        while number < 2 or not is_over.is_set():
            wish = wishes[number] if number < len(wishes) else wishes[number % len(wishes)].again()
            has_failed = ask(
                history,
                f"{name}/{number}",
                wish,
                http_address=self._links.address_of("client-http"),
                grpc_address=self._links.address_of("client-grpc"),
            )
            number += 1
            time.sleep(_RETRY_SECONDS if has_failed else _PAUSE_SECONDS)

    def _inflict(self, history: History, fault: Fault) -> None:
        history.add("fault", kind=fault.kind, process=fault.process)
        if fault.kind == "cut":
            self._links.cut(fault.process)
        else:
            self.cluster.kill(fault.process, _SIGNALS[fault.kind])

    def _undo(self, history: History, faults: Sequence[Fault]) -> None:
        """Have everything well again, when the faults have lasted long enough."""
        faults = [fault for fault in faults if fault.kind != "cut"]
        time.sleep(max((fault.lasting_seconds for fault in faults), default=0.0))
        for fault in faults:
            if fault.kind == "stop":
                self.cluster.processes[fault.process].send(signal.SIGCONT)
            else:
                self.cluster.processes[fault.process].wait()
                self.cluster.start(fault.process)
        self.cluster.wait_ready()
        for fault in faults:
            history.add("healed", process=fault.process)
