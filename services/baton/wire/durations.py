"""Durations between messages (google.protobuf.Duration) and seconds."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

_NANOSECONDS = 1_000_000_000


def duration_from_seconds(seconds: float) -> Duration:
    """Return the message of a time in seconds, to the nanosecond."""
    whole, nanos = divmod(round(seconds * _NANOSECONDS), _NANOSECONDS)
    return Duration(seconds=whole, nanos=nanos)


def seconds_from_duration(duration: Duration) -> float:
    """Return the seconds of a message."""
    return float(duration.seconds + duration.nanos / _NANOSECONDS)
