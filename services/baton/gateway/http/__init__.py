"""HTTP/1.1: connections, requests read, responses and streams written."""
