"""`baton kv-link`: moves KV frames between two processes without a model, to measure what a link and a machine can do.

Either end is told what to do by lines on stdin and answers by lines of JSON on stdout, as `baton bench kv-transport`
speaks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated, Literal

import typer

from baton.errors import ConfigurationError
from baton.security.exposure import is_loopback

PathName = Literal["fast", "fast-checked", "shared", "grpc"]

_HOST = "127.0.0.1"

app = typer.Typer(no_args_is_help=True, help="Move KV frames without a model, and measure it.")


@app.command()
def send(
    path: Annotated[PathName, typer.Option(help="What carries the frames.")] = "fast",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _HOST,
    is_insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines, without TLS.")] = False,
) -> None:
    """Serve frames: prints its port, then for each line on stdin its CPU time so far; ends with stdin."""
    if not is_insecure and not is_loopback(host):
        raise ConfigurationError(f"--host {host}: others can reach it, and it has no TLS: pass --insecure")
    asyncio.run(_send(path, host, port))


@app.command()
def receive(
    address: Annotated[str, typer.Argument(help="host:port of `baton kv-link send`.")],
    path: Annotated[PathName, typer.Option(help="What carries the frames; as the sender's.")] = "fast",
    num_frames: Annotated[int, typer.Option(min=1, help="Frames.")] = 1024,
    frame_bytes: Annotated[int, typer.Option(min=1024, max=16 << 20, help="Payload of a frame.")] = 1 << 20,
    num_slots: Annotated[int, typer.Option(min=1, help="Frames that memory is there for.")] = 256,
) -> None:
    """Take frames to warm up; after a line on stdin, take others and print seconds, CPU time, and if all was right."""
    from baton.kv_transport.kv_link import MAX_FRAMES_KEPT, Landing, LinkPath, receive_frames  # needs an extra

    kept = MAX_FRAMES_KEPT if path == "shared" else num_slots
    asyncio.run(receive_frames(LinkPath(path), address, num_slots, Landing(kept, frame_bytes)))
    # A node frees after a few frames what the gRPC library allocates for each message, and shared memory.
    landing = Landing(MAX_FRAMES_KEPT if path in ("grpc", "shared") else num_slots, frame_bytes)
    _say({"is_ready": True})
    sys.stdin.readline()
    started, cpu_started = time.perf_counter(), time.process_time()
    asyncio.run(receive_frames(LinkPath(path), address, num_frames, landing))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    is_right, num_bytes = landing.is_right(num_frames), num_frames * frame_bytes
    _say({"seconds": seconds, "cpu_seconds": cpu_seconds, "num_bytes": num_bytes, "is_right": is_right})


async def _send(path: PathName, host: str, port: int) -> None:
    from baton.kv_transport.kv_link import FrameSource, GrpcFrames
    from baton.kv_transport.kv_services import (
        PREFILL_SERVICE_NAME,
        FastServer,  # needs an extra
        add_prefill_service,
    )
    from baton.rpc.server import GrpcServer, host_port

    source = FrameSource(has_checksums=path in ("fast-checked", "shared"))
    server: GrpcServer | FastServer
    if path == "grpc":
        server = GrpcServer(host_port(host, port))
        server.add(PREFILL_SERVICE_NAME, lambda inner: add_prefill_service(GrpcFrames(source), inner))
        _say({"port": await server.start()})
    else:
        server = FastServer(host, port, source)
        _say({"port": server.start()})
    while await asyncio.to_thread(sys.stdin.readline):
        _say({"cpu_seconds": time.process_time()})
    await server.drain(0)


def _say(values: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()
