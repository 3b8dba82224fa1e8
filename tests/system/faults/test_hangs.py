"""Must show 2 of hangs: kill -9 and SIGSTOP of each kind of process under 64 streams, with default settings.

`make matrix` runs every cell and keeps what it measures in bench/results/hangs.json and hangs.md; of `make test` the
files beside this one are the sample.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import grpc
import pytest

from baton.internal.v1.router_service_pb2 import ExplainRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from checkpoints import checkpoint
from order import RUNS_ALL
from system.client import Ask, grpc_request
from system.cluster import Cluster, is_idle
from system.faults.conftest import SLOW_MODEL
from system.faults.hang_results import keep
from system.faults.near_ties import num_wrong
from system.plan import EngineName

pytestmark = [
    pytest.mark.skipif(not RUNS_ALL, reason="takes a quarter of an hour: run `make matrix`"),
    pytest.mark.timeout(1500),
]

NUM_STREAMS, NUM_ROUNDS = 64, 3
KILLED_SECONDS, STOPPED_SECONDS = 0.3, 1.0
"""Until a process that was killed, or stopped, is known to be gone."""
REPLAY_MARGIN = 1.2
"""Of the predicted time until a moved stream's next token."""
FREED_SECONDS = 1.0
"""Until nothing of a dead gateway is left on any node; a load report adds up to a tenth of a second."""
FALSE_VERDICT_SECONDS = 600.0
DEADLINE_SECONDS = 120.0
_REPORT_SECONDS = 0.15
_PASS_SECONDS = 0.3
"""A step of the mocks, slowed ten times, that is not cut short: what it computes is freed behind it."""
_EVENT = re.compile(
    r"^(\S+Z) \S+\s+\S+\s+(attempt_failed|kv_stream_broke|pass_hung|engine_progress|serve_call_failed)\b"
)
VICTIMS = {
    "prefill": "prefill-0",
    "decode": "decode-0",
    "router": "router",
    "index": "cache-index",
    "gateway": "gateway",
}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "gateway": {"node_poll_seconds": "1", "drain_seconds": "30"},
    "router": {"report_interval_seconds": "0.5"},
    "prefill": {"num_blocks": "2048"},
    "decode": {"num_blocks": "2048", "probe_bytes": str(8 << 20)},
}
"""What `system.plan` sets for quick tests is set back."""


@dataclass
class Seen:
    """One stream, as its client sees it."""

    token_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token came, seconds since the epoch."""
    error: str = ""


def asks_of(engine: EngineName, round_number: int) -> list[Ask]:
    """Return requests of which no two begin alike; half of the mocks' are drawn.

    Those of torch are greedy: in float32 logits move by up to 1e-4 with the batch and what is computed at once, and a
    drawn token may lie as near to the border of two.
    """
    num_tokens = 40 if engine == "mock" else 400
    return [
        Ask(
            tuple((11 * index + 5 * place + 6 * round_number) % 500 + 3 for place in range(48 + index % 32)),
            num_tokens,
            index % 2 if engine == "mock" else 0,
            seed=index,
            cache_salt=f"round-{time.time_ns()}",
        )
        for index in range(NUM_STREAMS)
    ]


@contextmanager
def started(engine: EngineName, *, routers: int = 2, **settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Run two prefill and two decode nodes of an engine, with two routers."""
    slow = {**SLOW_MODEL, "mock_time_scale": "10"} if engine == "mock" else {}
    merged = {role: {**values, **(slow if role in ("prefill", "decode") else {})} for role, values in DEFAULTS.items()}
    merged["router"] = {**merged["router"], "prefill_policy": "remote"}
    for role, values in settings.items():
        merged[role] = {**merged[role], **values}
    nodes = (engine,) * 2
    with Cluster(checkpoint("llama"), prefill=nodes, decode=nodes, routers=routers, settings=merged) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["mock", "torch"])
def struck_cluster(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, EngineName]]:
    """Return a cluster, and its engine."""
    with started(request.param) as cluster:
        yield cluster, request.param


async def follow(stub: GenerationServiceStub, ask: Ask, name: str, seen: Seen) -> None:
    """Read a stream to its end."""
    metadata = (("x-request-id", name),)
    try:
        async for response in stub.Generate(grpc_request(ask), timeout=DEADLINE_SECONDS, metadata=metadata):
            seen.token_ids += response.token_ids
            seen.times += [time.time()] * len(response.token_ids)
    except grpc.aio.AioRpcError as error:
        seen.error = f"{error.code().name}: {error.details()}"


@contextmanager
def calling(address: str) -> Iterator[GenerationServiceStub]:
    """Return the public API at an address, for calls of the event loop that runs."""
    channel = grpc.aio.insecure_channel(address)
    yield GenerationServiceStub(channel)  # type: ignore[no-untyped-call]


_expected: dict[tuple[EngineName, int], list[Seen]] = {}


def expected_of(cluster: Cluster, engine: EngineName, round_number: int) -> list[Seen]:
    """Return what clients see of a round's requests when nothing happens, asked once."""
    if (engine, round_number) not in _expected:
        seen = asyncio.run(run_undisturbed(cluster, asks_of(engine, round_number)))
        assert not any(each.error for each in seen)
        _expected[engine, round_number] = seen
        cluster.wait_idle()
    return _expected[engine, round_number]


async def run_undisturbed(cluster: Cluster, asks: Sequence[Ask]) -> list[Seen]:
    """Return what clients see when nothing happens, under another salt: caches hold nothing of it afterwards."""
    seen = [Seen() for _ in asks]
    with calling(cluster.grpc_address) as stub:
        async with asyncio.TaskGroup() as tasks:
            for index, (ask, each) in enumerate(zip(asks, seen, strict=True)):
                tasks.create_task(follow(stub, replace(ask, cache_salt="undisturbed"), f"calm-{index}", each))
    return seen


@dataclass
class Strike:
    """What a round showed."""

    seen: list[Seen]
    late: list[Seen]
    """Requests that were sent while the others ran, half of them before; the first of `times` is when."""
    struck_at: float
    freed_seconds: float | None = None
    """Until no node reported work any more; None: not asked."""


async def strike(cluster: Cluster, asks: Sequence[Ask], victim: str, number: signal.Signals, tag: str) -> Strike:
    """Send a signal to a process while all requests run, and more requests behind it."""
    result = Strike([Seen() for _ in asks], [], 0.0)
    half_begun = victim.startswith("prefill")
    with calling(cluster.grpc_address) as stub:
        async with asyncio.TaskGroup() as tasks:
            for index, (ask, each) in enumerate(zip(asks, result.seen, strict=True)):
                tasks.create_task(follow(stub, ask, f"{tag}-{index}", each))
            num_begun = NUM_STREAMS // 4 if half_begun else NUM_STREAMS
            while sum(bool(each.times) for each in result.seen) < num_begun:  # noqa: ASYNC110 - streams tell nobody
                await asyncio.sleep(0.005)
            for index in range(20 if victim == "router" else 0):
                if index == 10:
                    result.struck_at = time.time()
                    await asyncio.to_thread(cluster.kill, victim, number)
                result.late.append(Seen(times=[time.time()]))
                ask = replace(asks[index], num_tokens=2)
                tasks.create_task(follow(stub, ask, f"{tag}-late-{index}", result.late[-1]))
                await asyncio.sleep(0.1)
            if victim != "router":
                result.struck_at = time.time()
                await asyncio.to_thread(cluster.kill, victim, number)
            if victim == "gateway":
                result.freed_seconds = await asyncio.to_thread(_seconds_until_idle, cluster, result.struck_at)
                cluster.processes[victim].send(signal.SIGCONT)
    return result


def _seconds_until_idle(cluster: Cluster, since: float) -> float:
    def are_idle() -> bool:
        states = cluster.nodes().values()
        return bool(states) and all(is_idle(state) for state in states)

    cluster.wait_until(are_idle, "all is free", 30)
    return time.time() - since


def verdicts(cluster: Cluster, since: float = 0.0) -> list[Sequence[float]]:
    """Return when each process took others for gone, or hung, seconds since the epoch; of those that did."""
    found = []
    for path in cluster.log_files.values():
        matches = map(_EVENT.match, path.read_text(errors="replace").splitlines())
        moments = [datetime.fromisoformat(match[1]).timestamp() for match in matches if match]
        found.append(sorted(moment for moment in moments if moment >= since))
    return [moments for moments in found if moments]


def predicted_seconds(cluster: Cluster, request_id: str, *, least: int = 2) -> float:
    """Return what the router expected until the first token, when it placed a request last; 0: not `least` times."""
    for name in ("router", "router-1"):
        with grpc.insecure_channel(cluster.address_of(name)) as channel:
            try:
                answer = RouterServiceStub(channel).Explain(ExplainRequest(request_id=request_id), timeout=10)  # type: ignore[no-untyped-call]
            except grpc.RpcError:
                continue
            if len(answer.records) >= least:
                return float(answer.records[-1].choice.estimate.time_to_first_token_seconds)
    return 0.0


@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize("kind", VICTIMS)
def test_streams_outlive(struck_cluster: tuple[Cluster, EngineName], kind: str, how: str) -> None:
    """No token is lost, wrong or doubled; with mocks the death is found in time, and what follows is as predicted."""
    cluster, engine = struck_cluster
    victim, rows = VICTIMS[kind], []
    for round_number in range(NUM_ROUNDS):
        cluster.heal()
        asks, tag = asks_of(engine, round_number), f"{kind}-{how}-{engine}-{round_number}-{time.time_ns()}"
        expected = expected_of(cluster, engine, round_number)
        result = asyncio.run(strike(cluster, asks, victim, SIGNALS[how], tag))
        cluster.processes[victim].send(signal.SIGCONT)
        rows.append(_row(cluster, engine, asks, result, expected, tag))
    has_passed = all(_is_good(row, engine, kind, how) for row in rows)
    keep(f"{kind} {how}, {engine}", rows, has_passed=has_passed)

    assert has_passed, rows


def _begins_alike(seen: Seen, whole: Seen) -> bool:
    num_tokens = min(len(seen.token_ids), len(whole.token_ids))
    return seen.token_ids[:num_tokens] == whole.token_ids[:num_tokens]


def _num_wrong(engine: EngineName, ask: Ask, seen: Seen, whole: Seen) -> int:
    """Return the wrong tokens of a stream that is not as the undisturbed one: none, where two tokens were tied."""
    if engine == "torch":
        return num_wrong(ask.prompt_token_ids, seen.token_ids)
    return sum(mine != theirs for mine, theirs in zip(seen.token_ids, whole.token_ids, strict=False))


def _row(
    cluster: Cluster, engine: EngineName, asks: Sequence[Ask], result: Strike, expected: Sequence[Seen], tag: str
) -> dict[str, float]:
    pairs = list(zip(result.seen, expected, strict=True))
    others = [index for index, (seen, whole) in enumerate(pairs) if not _begins_alike(seen, whole)]
    wrong = [_num_wrong(engine, asks[index], *pairs[index]) for index in others]
    found = verdicts(cluster, result.struck_at)
    gaps, replays = [0.0], [(0.0, 0.0)]
    for index, seen in enumerate(result.seen):
        after = [moment for moment in seen.times if moment > result.struck_at]
        before = [moment for moment in seen.times if moment <= result.struck_at]
        if not after:
            continue
        gaps.append(max((b - a for a, b in zip([*before[-1:], *after], after, strict=False)), default=0.0))
        if found and (predicted := predicted_seconds(cluster, f"{tag}-{index}")):
            begun = max((moments[0] for moments in found if moments[0] < after[-1]), default=after[0])
            resumed = min((moment for moment in after if moment > begun), default=begun)
            replays.append((resumed - begun, predicted))
    return {
        "errors": sum(bool(seen.error) for seen in (*result.seen, *result.late)),
        "lost": sum(max(0, len(whole.token_ids) - len(seen.token_ids)) for seen, whole in pairs),
        "doubled": sum(max(0, len(seen.token_ids) - len(whole.token_ids)) for seen, whole in pairs),
        "wrong": sum(wrong),
        "tied": wrong.count(0),
        "verdicts": sum(map(len, found)),
        "detected_seconds": max((moments[0] - result.struck_at for moments in found), default=0.0),
        "worst_gap_seconds": max(gaps),
        "replay_seconds": max(measured for measured, _ in replays),
        "predicted_replay_seconds": max(predicted for _, predicted in replays),
        "late_seconds": max(0.0, _beyond_prediction(cluster, result, tag)),
        "freed_seconds": result.freed_seconds or 0.0,
    }


def _beyond_prediction(cluster: Cluster, result: Strike, tag: str) -> float:
    """Return by how much more requests missed their predictions behind the strike than before it, at worst."""
    misses: tuple[list[float], list[float]] = ([0.0], [0.0])
    for index, late in enumerate(result.late):
        if len(late.times) > 1:
            expected = predicted_seconds(cluster, f"{tag}-late-{index}", least=1)
            misses[late.times[0] > result.struck_at].append(late.times[1] - late.times[0] - expected)
    return max(misses[True]) - max(misses[False])


def _is_good(row: Mapping[str, float], engine: EngineName, kind: str, how: str) -> bool:
    if kind == "gateway":
        in_flight = _PASS_SECONDS if engine == "mock" else 0.0
        return row["freed_seconds"] <= FREED_SECONDS + _REPORT_SECONDS + in_flight and (
            how == "killed" or _is_exact(row)
        )
    if engine != "mock":
        return _is_exact(row)
    limit_seconds = KILLED_SECONDS if how == "killed" else STOPPED_SECONDS
    is_in_time = max(row["detected_seconds"], row["late_seconds"]) <= limit_seconds
    return _is_exact(row) and is_in_time and row["replay_seconds"] <= REPLAY_MARGIN * row["predicted_replay_seconds"]


def _is_exact(row: Mapping[str, float]) -> bool:
    return not any(row[name] for name in ("errors", "lost", "doubled", "wrong"))


def test_long_passes_on_a_busy_machine_are_no_hangs() -> None:
    """Ten minutes of passes of 3 s with both cores busy: nobody takes anybody for gone."""
    slow = {"mock_step_seconds": "3", "mock_time_scale": "1"}
    begun, num_requests = time.monotonic(), 0
    with ExitStack() as stack:
        cluster = stack.enter_context(started("mock", prefill=slow, decode=slow))
        for _ in range(multiprocessing.cpu_count()):
            burner = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
            burner.start()
            stack.callback(burner.kill)
        while time.monotonic() - begun < FALSE_VERDICT_SECONDS:
            asks = [replace(ask, num_tokens=8) for ask in asks_of("mock", num_requests)[:16]]
            seen = asyncio.run(run_undisturbed(cluster, asks))
            num_requests += len(asks)
            assert [each.error for each in seen] == [""] * len(asks)
            assert all(len(each.token_ids) == 8 for each in seen)
        found = verdicts(cluster)
    row = {"requests": num_requests, "seconds": time.monotonic() - begun, "verdicts": len(found)}
    keep("passes of 3 s on busy cores", [row], has_passed=not found)

    assert not found


def _burn() -> None:
    while True:
        pass
