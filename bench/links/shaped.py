"""The hand-over across links of 1, 5 and 10 Gb/s, and the table of a DGX Spark with an M3 Ultra: measured, predicted.

Run as root: `baton bench shaped --model services/baton/demo/checkpoint --out bench/results/shaped.json`. The prefill
node stands behind a link in a network namespace. Every prompt goes as the router places it: groups of layers and
number format are its decision. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from baton.internal.v1 import router_service_pb2
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.node_pb2 import NODE_ROLE_DECODE, NODE_ROLE_PREFILL
from baton.internal.v1.router_service_pb2 import Placement
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import PlacementSummary
from bench.links.hosts import hosted_cluster
from bench.links.network import PAYLOAD_SHARE, Network, network_of
from bench.local_cluster import MODEL, NodeTable, generate_request, mock_node, real_node
from bench.options import at_least, list_of, positive
from bench.results_file import describe_machine, write_results

_CALL_TIMEOUT_SECONDS = 300.0
_REQUEST_ID = "bench"


class NotRemoteError(RuntimeError):
    """A prompt that the prefill node should have computed was computed elsewhere."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Calls into a running cluster."""

    decode: DecodeServiceStub
    router: RouterServiceStub
    decode_node_id: str
    prefill_node_id: str
    """Id of the prefill node; empty: there is none."""

    def place(self, num_prompt_tokens: int, num_output_tokens: int) -> Placement:
        """Return how the router has a prompt computed, on the prefill node where there is one."""
        pin = router_service_pb2.PlacementPin(decode_node_id=self.decode_node_id, prefill_node_id=self.prefill_node_id)
        request = router_service_pb2.PlaceRequest(
            request_id=_REQUEST_ID,
            model_id=MODEL,
            prompt_token_count=num_prompt_tokens,
            max_token_count=num_output_tokens,
            bypass_prefix_cache=True,
            pins=[pin],
        )
        response: router_service_pb2.PlaceResponse = self.router.Place(request, timeout=_CALL_TIMEOUT_SECONDS)
        return response.placement

    def generate(
        self, placement: Placement, num_prompt_tokens: int, num_output_tokens: int, seed: int
    ) -> tuple[list[float], PlacementSummary]:
        """Generate after a prompt of random tokens, which no prefix cache keeps.

        Returns seconds (`time.perf_counter`) at which each token came, and the request's summary. Raises NotRemoteError
        if no token came, or the prompt was to be computed on the prefill node, and was not.
        """
        tokens = random.Random(seed)
        prompt = [tokens.randrange(3, 90) for _ in range(num_prompt_tokens)]
        fields = {"placement": placement, "bypass_prefix_cache": True}
        request = generate_request(_REQUEST_ID, prompt, num_output_tokens, **fields)
        times, summary = list[float](), PlacementSummary()
        for response in self.decode.Generate(request, timeout=_CALL_TIMEOUT_SECONDS):
            if response.HasField("tokens"):
                times.append(time.perf_counter())
            elif response.HasField("finished"):
                summary = response.finished.summary
        if not times:
            raise NotRemoteError("no token came")
        if placement.prefill_node_id and (summary.fallback_reason or not summary.kv_byte_count):
            cause = summary.fallback_reason or "no KV came"
            raise NotRemoteError(f"the prompt was not computed on {placement.prefill_node_id}: {cause}")
        return times, summary


@contextmanager
def shaped_cluster(network: Network, model: Path, decode: NodeTable, prefill: NodeTable | None) -> Iterator[Cluster]:
    """Run a cluster as long as the context lasts.

    The prefill node is at the far side of the link; None: there is none. The decode node has measured the link. Raises
    TimeoutError if the nodes do not register.
    """
    hosted = [(decode, 0), (prefill, 1)] if prefill is not None else [(decode, 0)]
    with hosted_cluster(network, model, hosted) as (hosts, states):
        nodes = {state.node.role: state.node for state in states}
        decode_node = nodes[NODE_ROLE_DECODE]
        with grpc.insecure_channel(decode_node.address) as channel:
            yield Cluster(
                DecodeServiceStub(channel),  # type: ignore[no-untyped-call]
                hosts.router,
                decode_node.node_id,
                nodes[NODE_ROLE_PREFILL].node_id if prefill is not None else "",
            )


_SPARK, _ULTRA = mock_node("prefill", "dgx-spark", 1), mock_node("decode", "m3-ultra", 1)
_SPARK_ALONE = mock_node("decode", "dgx-spark", 1)
_TABLE_TOKENS, _TABLE_OUTPUT, _TABLE_RATE = 8192, 32, 10e9
_WARM_TOKENS = 512
"""Prompt before those that count: connections are opened, and the router learns how long outputs are."""
_MAX_ATTEMPTS = 3
"""Of one prompt: on a machine with other work a stream may break off, and what took its place is no sample; and a node
that could not report for a while is none to the router until it does."""
_RETRY_SECONDS = 1.0
"""Two reports of a node."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes and the prompts that they are given."""

    name: str
    prefill: NodeTable
    decode: NodeTable
    prompt_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt, all times in seconds."""

    compute_seconds: float
    transfer_seconds: float
    exposed_seconds: float
    last_token_seconds: float
    predicted_seconds: float
    num_bytes: int
    num_frames: int

    @property
    def hidden_share(self) -> float:
        """Return 1 - exposed / transfer, 0 to 1; 1 where every frame had arrived as it was made: all is hidden."""
        if self.transfer_seconds <= 0:
            return 1.0
        return min(1.0, max(0.0, 1 - self.exposed_seconds / self.transfer_seconds))


@dataclass(frozen=True, slots=True)
class Row:
    """A pair, a link and a prompt length."""

    pair: str
    link_bits_per_second: float
    num_prompt_tokens: int
    samples: tuple[Sample, ...]

    def median(self, name: str) -> float:
        """Return the median of a field of the samples."""
        return float(statistics.median(getattr(sample, name) for sample in self.samples))

    @property
    def wire_seconds(self) -> float:
        """Return the time that the link needs for the bytes, in full packets with their headers."""
        return 8 * self.median("num_bytes") / (self.link_bits_per_second * PAYLOAD_SHARE)

    @property
    def start_seconds(self) -> float:
        """Return the time until decoding can begin: computed, and everything arrived."""
        return statistics.median(sample.compute_seconds + sample.exposed_seconds for sample in self.samples)

    @property
    def bound_seconds(self) -> float:
        """Return max(compute, wire) and one group of whichever is quicker: the least that a pipeline can take."""
        compute, num_groups = self.median("compute_seconds"), max(1.0, self.median("num_frames"))
        return max(compute, self.wire_seconds) + min(compute, self.wire_seconds) / num_groups

    @property
    def hidden_share(self) -> float:
        """Return the median of the samples' hidden shares."""
        return statistics.median(sample.hidden_share for sample in self.samples)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        derived = ("wire_seconds", "start_seconds", "bound_seconds", "hidden_share")
        compute = self.median("compute_seconds")
        own = {"compute_seconds": compute, "blob_seconds": compute + self.wire_seconds}
        return {**asdict(self), **own, **{name: getattr(self, name) for name in derived}}


PAIRS = (
    Pair("DGX Spark to M3 Ultra (mock, llama-3.1-8b)", _SPARK, _ULTRA, (512, 1024, 2048, 4096, 8192)),
    Pair(
        "torch to MLX (CPU, demo model)", real_node("prefill", "torch"), real_node("decode", "mlx"), (512, 1024, 2048)
    ),
)


def main() -> None:
    """Measure, print tables, draw, and write the raw samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder; mocks take its tokenizer")
    parser.add_argument("--rates", type=list_of(positive), default="1,5,10", help="Gb/s, separated by commas")
    parser.add_argument("--repeat", type=at_least(1), default=3, help="prompts per row; all rows take a minute with 1")
    parser.add_argument("--max-tokens", type=int, default=8192, help="longest prompt")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    with network_of() as network:
        rows = list(_measure_links(network, options))
        table = list(_measure_table(network, options)) if options.max_tokens >= _TABLE_TOKENS else []
    if options.out:
        machine = {**describe_machine(), "argv": [argument for argument in sys.argv[1:] if "/" not in argument]}
        write_results(options.out, {"machine": machine, "rows": [row.document() for row in rows], "table": table})


def _measure_links(network: Network, options: argparse.Namespace) -> Iterator[Row]:
    columns = ("Gb/s", "tokens", "compute", "wire", "start", "bound", "ratio", "hidden")
    rates = [1e9 * gigabits for gigabits in options.rates]
    for pair in PAIRS:
        print(f"\n{pair.name}\n" + " ".join(f"{column:>9}" for column in columns), flush=True)
        lengths = [length for length in pair.prompt_lengths if length <= options.max_tokens]
        with shaped_cluster(network, options.model, pair.decode, pair.prefill) as cluster:
            seeds = itertools.count(1)
            generate_remotely(cluster, lengths[0], next(seeds))
            for rate, length in itertools.product(rates, lengths):
                network.set_rate(1, rate)
                samples = tuple(generate_remotely(cluster, length, next(seeds)) for _ in range(options.repeat))
                row = Row(pair.name, rate, length, samples)
                print(_line(row), flush=True)
                yield row


def _line(row: Row) -> str:
    values = (row.median("compute_seconds"), row.wire_seconds, row.start_seconds, row.bound_seconds)
    ratio = row.start_seconds / row.bound_seconds
    head = f"{row.link_bits_per_second / 1e9:9.0f} {row.num_prompt_tokens:9d} "
    return head + " ".join(f"{value:9.3f}" for value in (*values, ratio, row.hidden_share))


def _measure_table(network: Network, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of docs/placement.md: each machine alone, and both."""
    print(f"\n{_TABLE_TOKENS} + {_TABLE_OUTPUT} tokens, {_TABLE_RATE / 1e9:.0f} Gb/s")
    print(f"{'nodes':24} {'predicted':>9} {'measured':>9} {'ratio':>9}", flush=True)
    network.set_rate(1, _TABLE_RATE)
    rows = (("DGX Spark", _SPARK_ALONE, None), ("M3 Ultra", _ULTRA, None), ("DGX Spark to M3 Ultra", _ULTRA, _SPARK))
    for name, decode, prefill in rows:
        with shaped_cluster(network, options.model, decode, prefill) as cluster:
            generate_remotely(cluster, _WARM_TOKENS, 1, _TABLE_OUTPUT)
            seeds = range(2, 2 + options.repeat)
            samples = [generate_remotely(cluster, _TABLE_TOKENS, seed, _TABLE_OUTPUT) for seed in seeds]
        predicted = statistics.median(sample.predicted_seconds for sample in samples)
        measured = statistics.median(sample.last_token_seconds for sample in samples)
        print(f"{name:24} {predicted:9.3f} {measured:9.3f} {measured / predicted:9.3f}", flush=True)
        yield {
            "nodes": name,
            "predicted_seconds": predicted,
            "measured_seconds": measured,
            "samples": [asdict(sample) for sample in samples],
        }


def generate_remotely(cluster: Cluster, num_prompt_tokens: int, seed: int, num_output_tokens: int = 2) -> Sample:
    """Generate tokens after a prompt of random tokens, on the prefill node where there is one.

    A placement whose call failed goes with the next one: to the router it is work until it ends, or its time is up.
    """
    placement = Placement()
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            placement = placement if placement.placement_id else cluster.place(num_prompt_tokens, num_output_tokens)
            started = time.perf_counter()
            times, summary = cluster.generate(placement, num_prompt_tokens, num_output_tokens, seed)
            break
        except (NotRemoteError, grpc.RpcError) as error:
            is_passing = isinstance(error, NotRemoteError) or error.code() is grpc.StatusCode.UNAVAILABLE
            if attempt == _MAX_ATTEMPTS or not is_passing:
                raise
            if isinstance(error, NotRemoteError):
                placement = Placement()
            print(f"again, {num_prompt_tokens} tokens: {error}", flush=True)
            time.sleep(_RETRY_SECONDS)
    estimate = placement.estimate
    return Sample(
        compute_seconds=summary.prefill_duration.ToNanoseconds() / 1e9,
        transfer_seconds=summary.transfer_duration.ToNanoseconds() / 1e9,
        exposed_seconds=summary.exposed_duration.ToNanoseconds() / 1e9,
        last_token_seconds=times[-1] - started,
        predicted_seconds=estimate.start_seconds + (num_output_tokens - 1) * estimate.step_seconds,
        num_bytes=summary.kv_byte_count,
        num_frames=summary.kv_frame_count,
    )


if __name__ == "__main__":
    main()
