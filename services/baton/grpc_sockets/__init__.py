"""gRPC over HTTP/2 on plain sockets and threads, for large messages: sent from and received into given memory."""
