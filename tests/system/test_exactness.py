"""A sample of the exactness matrix over real gRPC between real processes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grpc
import pytest

from baton.internal.v1 import decode_service_pb2, router_service_pb2
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.security.access import digest_of
from baton.v1 import generation_pb2
from checkpoints import CheckpointName, checkpoint, reference_generate
from order import RUNS_ALL
from system.cluster import Cluster
from system.plan import MODEL_NAME, EngineName

PROMPT_LENGTHS = (1, 16, 17, 700)
NUM_NEW_TOKENS = 64
TIMEOUT_SECONDS = 60.0
SHARED: tuple[CheckpointName, EngineName, EngineName] = ("llama", "mlx", "torch")
"""Which nodes of `exact_cluster` are."""
SAMPLE: tuple[tuple[CheckpointName, EngineName, EngineName], ...] = (
    SHARED,
    *([("mistral", "mlx", "torch"), ("qwen3", "torch", "mlx"), ("qwen2", "torch", "torch")] if RUNS_ALL else []),
)
"""Every pair of engines, but torch and MLX, which `models/test_hybrid_demo.py` tries; all families pass in
`tests/exactness/test_token_exactness.py`."""


class Sample(NamedTuple):
    """A running pair of nodes, the first of which is "prefill-0"."""

    cluster: Cluster
    checkpoint: CheckpointName
    decode_node_id: str


class Generated(NamedTuple):
    """One answer of a decode node."""

    token_ids: list[int]
    summary: generation_pb2.PlacementSummary


@pytest.fixture(params=SAMPLE, ids="-".join)
def sample(request: pytest.FixtureRequest, exact_cluster: Cluster) -> Iterator[Sample]:
    """Return a running pair of nodes for each sample in turn."""
    name, prefill, decode = request.param
    if request.param == SHARED:
        exact_cluster.heal()
        yield Sample(exact_cluster, name, "decode-1")
        return
    with Cluster(checkpoint(name), prefill=(prefill,), decode=(decode,)) as cluster:
        yield Sample(cluster, name, "decode-0")


def test_output_over_grpc_equals_transformers(sample: Sample) -> None:
    """Prompts prefilled on the other process, with and without a hit on either side, give the reference's tokens."""
    for prompt in _prompts():
        cold = _generate(sample, prompt, "cold")
        half = _generate(sample, prompt[: len(prompt) // 2 + 1], "half", prefill_node_id="prefill-0", num_tokens=2)
        partial = _generate(sample, prompt, "half", prefill_node_id="prefill-0")
        warm = _generate(sample, prompt, "half", prefill_node_id="prefill-0", layers_per_frame=3)

        expected = reference_generate(checkpoint(sample.checkpoint), prompt, NUM_NEW_TOKENS, guess=cold.token_ids)
        assert half.summary.prefill_node_id == "prefill-0"
        assert half.summary.fallback_reason == partial.summary.fallback_reason == warm.summary.fallback_reason == ""
        assert cold.token_ids == partial.token_ids == warm.token_ids == expected, f"{len(prompt)} tokens"
        num_half = (len(prompt) // 2 + 1) // 16 * 16
        assert partial.summary.decode_cached_token_count == partial.summary.prefill_cached_token_count == num_half
        num_full = (len(prompt) - 1) // 16 * 16
        assert warm.summary.decode_cached_token_count == warm.summary.prefill_cached_token_count == num_full
    sample.cluster.wait_idle()


def _prompts() -> Iterator[list[int]]:
    draw = random.Random(14)  # no model's best two tokens are nearly equal after these
    for length in PROMPT_LENGTHS:
        yield [draw.randrange(3, 512) for _ in range(length)]


def _generate(
    sample: Sample,
    prompt: Sequence[int],
    salt: str,
    *,
    prefill_node_id: str = "",
    layers_per_frame: int = 1,
    num_tokens: int = NUM_NEW_TOKENS,
) -> Generated:
    name = f"{len(prompt)}-{salt}-{layers_per_frame}"
    asked = router_service_pb2.PlaceRequest(
        request_id=name,
        model_id=MODEL_NAME,
        prompt_token_count=len(prompt),
        max_token_count=num_tokens,
        pins=[router_service_pb2.PlacementPin(decode_node_id=sample.decode_node_id, prefill_node_id=prefill_node_id)],
        salt_digest=digest_of(salt),
    )
    with grpc.insecure_channel(sample.cluster.address_of("router")) as channel:
        placement = RouterServiceStub(channel).Place(asked, timeout=TIMEOUT_SECONDS).placement  # type: ignore[no-untyped-call]
    placement.layers_per_frame = layers_per_frame
    request = decode_service_pb2.DecodeServiceGenerateRequest(
        request_id=name,
        attempt=1,
        model_id=MODEL_NAME,
        prompt_token_ids=prompt,
        sampling=generation_pb2.SamplingParameters(temperature=0, ignore_eos=True, max_token_count=num_tokens),
        placement=placement,
        cache_salt=salt,
    )
    token_ids: list[int] = []
    with grpc.insecure_channel(sample.cluster.address_of(sample.decode_node_id)) as channel:
        for response in DecodeServiceStub(channel).Generate(request, timeout=TIMEOUT_SECONDS):  # type: ignore[no-untyped-call]
            if response.HasField("tokens"):
                assert response.tokens.output_index == len(token_ids)
                token_ids += response.tokens.token_ids
            elif response.HasField("finished"):
                return Generated(token_ids, response.finished.summary)
    raise AssertionError("the stream ended without its last message")
