"""Streams an answer from Baton: python client.py 127.0.0.1:8001 'What is 12 + 30?'."""

import os
import sys
from pathlib import Path

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from baton.v1.generation_pb2 import SamplingParameters
from baton.v1.generation_service_pb2 import ChatMessage, Conversation, GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub


def open_channel(address: str) -> grpc.Channel:
    """TLS where BATON_CA names the authority's certificate."""
    if authority := os.environ.get("BATON_CA"):
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(authority).read_bytes()))
    return grpc.insecure_channel(address)


def main(address: str, question: str) -> None:
    """Write text as it comes; how it ended and what was wrong go to standard error."""
    key = os.environ.get("BATON_KEY")
    metadata = [("authorization", f"Bearer {key}")] if key else []
    messages = [ChatMessage(role="user", content=question)]
    request = GenerateRequest(
        conversation=Conversation(messages=messages), sampling=SamplingParameters(temperature=0, max_token_count=256)
    )
    with open_channel(address) as channel:
        try:
            for part in GenerationServiceStub(channel).Generate(request, metadata=metadata, timeout=60):
                print(part.text, end="", flush=True)
                if part.HasField("finished"):
                    print(f"\n{part.finished.usage.completion_token_count} tokens", file=sys.stderr)
        except grpc.RpcError as error:
            info, status = ErrorInfo(), rpc_status.from_call(error)
            any(detail.Unpack(info) for detail in (status.details if status else ()))
            sys.exit(f"{error.code().name} {info.reason}: {error.details()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
