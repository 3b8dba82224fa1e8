"""A well-behaved client that generates while a test does something else."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import grpc

from baton.v1.generation_pb2 import SamplingParameters
from baton.v1.generation_service_pb2 import GenerateRequest, TokenSequence
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from system.client import DEADLINE_SECONDS
from system.cluster import Cluster

NUM_TOKENS = 200
"""Tokens of each of its generations."""
_REQUEST = GenerateRequest(
    tokens=TokenSequence(token_ids=range(20, 60)),
    sampling=SamplingParameters(temperature=0, max_token_count=NUM_TOKENS, ignore_eos=True),
)


class Bystander:
    """Streams the same generation again and again, from `with` to its end.

    Invariant, checked at the end: every stream came whole and equals the one that ran before the test, alone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._address = cluster.grpc_address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._first_token = threading.Event()
        self._error: grpc.RpcError | None = None
        self._outputs: list[list[int]] = []

    def __enter__(self) -> Self:
        with grpc.insecure_channel(self._address) as channel:
            self._alone = self._generate(channel)
        self._thread.start()
        assert self._first_token.wait(DEADLINE_SECONDS)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(DEADLINE_SECONDS)
        if error is None:
            assert not self._thread.is_alive(), "the stream beside the test hangs"
            assert self._error is None, f"the stream beside the test failed: {self._error}"
            assert all(output == self._alone for output in self._outputs), "the test changed another request's output"

    def _run(self) -> None:
        try:
            with grpc.insecure_channel(self._address) as channel:
                while not self._is_over.is_set():
                    self._outputs.append(self._generate(channel))
        except grpc.RpcError as error:
            self._error = error
            self._first_token.set()

    def _generate(self, channel: grpc.Channel) -> list[int]:
        output: list[int] = []
        for response in GenerationServiceStub(channel).Generate(_REQUEST, timeout=DEADLINE_SECONDS):  # type: ignore[no-untyped-call]
            output += response.token_ids
            self._first_token.set()
        return output
