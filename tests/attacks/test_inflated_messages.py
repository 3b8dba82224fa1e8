"""Finding 5: messages of 61 kB, which gzip makes 64 MiB of, were inflated before anybody looked for a key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from attacks.http.door import SECONDS, HttpDoor
from attacks.victims import KEY, MIB, full
from system.plan import HOST

METHOD = "/baton.v1.GenerationService/ListModels"
NUM_CALLS = 4


@full
@pytest.mark.parametrize("who", ["a stranger", "a client"])
def test_what_is_inflated_is_bounded(gateway: HttpDoor, who: str) -> None:
    """For strangers it is nothing; for clients as much as a message may have."""
    metadata = [("authorization", f"Bearer {KEY}")] if who == "a client" else []

    def call(_index: int) -> grpc.StatusCode:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"{HOST}:{gateway.process.settings['grpc_port']}", options=options) as channel:
            ask = channel.unary_unary(METHOD)  # type: ignore[call-arg]
            try:
                ask(bytes(60 * MIB), timeout=SECONDS, metadata=metadata, compression=grpc.Compression.Gzip)
            except grpc.RpcError as error:
                return error.code()  # type: ignore[no-any-return,attr-defined]
        raise AssertionError("it was taken")

    with gateway.damage() as damage, ThreadPoolExecutor(NUM_CALLS) as threads:
        codes = set(threads.map(call, range(NUM_CALLS)))
    print(f"{NUM_CALLS} messages of 60 MiB in some kB, {who}: {damage}")

    refusals = {"a stranger": {grpc.StatusCode.UNAUTHENTICATED}, "a client": {grpc.StatusCode.INVALID_ARGUMENT}}
    assert codes == refusals[who]
    assert damage.most_bytes < (24 if who == "a stranger" else 64) * MIB
