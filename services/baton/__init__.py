"""Baton: prefill on one machine, decode on another, the KV cache streamed between them layer by layer."""

__version__ = "0.1.0"
