"""gRPC over HTTP/2 on plain sockets: KV streams on threads, into given memory; calls of an event loop without a thread.

What the library, grpcio, costs instead:

- KV, 2 GiB in messages of 1 MiB over loopback, sender and receiver together (`baton bench kv-transport`, medians of
  rounds in turns, bench/results/README.md): 2.80 GB/s at 0.50 CPU s/GB, here 4.70 at 0.31; on an EPYC with AVX2, 1.00
  GB/s at 1.58 CPU s/GB, here 2.35 at 0.76. The library copies a message once on its way out and twice on its way in.
- A caller on uvloop, CPU of its process (grpcio 1.85.1, Python 3.11, 2 shared cores of an EPYC, 2026-11-22, 7 and 3
  rounds in turns): 253 us for a unary call each millisecond, here 188; 158 us for a message of a stream that brings one
  each 2 ms, here 104. A thread of the library's wakes the event loop for everything that happens to a call.

Throw this package away once the library receives into given memory, and completes calls on the event loop's own thread.
"""
