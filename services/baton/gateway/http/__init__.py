"""HTTP/1.1, plain or by TLS: connections, requests read, responses and streams written, in gzip for who asks.

An offer to go on by HTTP/2 is passed over, as RFC 9110, 7.8 allows.

What the library, uvicorn (httptools, uvloop) with starlette, costs instead, in us of the server's CPU, medians of
three rounds in turns: 32 streams of 200 events of 200 bytes, one each 10 ms, and 1000 small POSTs on one connection
(uvicorn 0.54, starlette 1.10, Python 3.11, 2 shared cores of an EPYC, 2026-11-22):

| | event, from a coroutine | event, from a callback | POST |
|---|---|---|---|
| here | 21.5 | 15.5 | 18.4 |
| uvicorn alone | 23.4 | 24.6 | 23.6 |
| uvicorn and starlette | 27.7 | 28.9 | 38.9 |

A client that asks for gzip adds 2.2 to each event, and gets 12 of its 215 bytes (2026-11-23).

8 of each event are the timer that makes it. Tokens come to the gateway by callback, which an ASGI application can only
put into a queue for its task. Beside the costs: limits of headers, bodies and slow clients, and comments in idle
streams, which uvicorn leaves to a proxy. Throw the own code away once ASGI has a `send` that need not be awaited, or
once tokens come by coroutine: uvicorn alone costs a tenth more then.
"""
