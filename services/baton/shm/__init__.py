"""Memory that a receiver lends to a sender on the same host: payloads need no socket. Knows no message of Baton."""
