"""One generation as a call of its own, for decode nodes that do not know `Serve`."""

from __future__ import annotations

import asyncio
import logging

import grpc

from baton.errors import StreamBrokenError
from baton.gateway.attempt import Attempt, closed_error
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.status import error_from_rpc
from baton.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub

log = logging.getLogger(__name__)


async def generate_alone(channel: LoopChannel, request: DecodeServiceGenerateRequest, attempt: Attempt) -> None:
    """Tell an attempt what a node generates; cancelling this cancels the call."""
    call = DecodeServiceStub(channel).Generate(request)  # type: ignore[no-untyped-call]
    clock = asyncio.get_running_loop().time
    try:
        async for response in call:
            kind = response.WhichOneof("element")
            if kind == "tokens":
                chunk = response.tokens
                attempt.take_tokens(clock(), chunk.output_index, chunk.token_ids, chunk.logprobs)
            elif kind == "prompt":
                attempt.take_prompt(clock(), response.prompt)
            elif kind == "finished":
                attempt.finish(response.finished)
                return
            else:
                attempt.note_progress(clock())
        error = "the decode node ended the stream without saying how the generation ended"
        attempt.fail(StreamBrokenError(error))
    except grpc.aio.AioRpcError as rpc_error:
        attempt.fail(error_from_rpc(rpc_error))
    except asyncio.CancelledError:
        attempt.fail(closed_error())
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    except Exception as bug:  # the edge of the task: its attempt is told, and no other is touched
        log.exception("generate_call_failed")
        attempt.fail(bug)
    finally:
        call.cancel()
