"""Resident memory of a cluster's processes, and whether it grew."""

from __future__ import annotations

from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]

from system.cluster import Cluster

TOLERATED_SHARE = 0.05
TOLERATED_BYTES = 16 << 20
"""Growth within both together is noise: allocators keep pages, and thread pools start late."""

Resident = Mapping[str, int]
"""Resident bytes by process name."""


def read_resident(cluster: Cluster) -> Resident:
    """Return the resident memory of every process."""
    return {name: psutil.Process(cluster.pid_of(name)).memory_info().rss for name in cluster.processes}


def grown(before: Resident, after: Resident) -> list[str]:
    """Return the processes whose memory grew by more than is tolerated."""
    return [name for name in before if after[name] > before[name] * (1 + TOLERATED_SHARE) + TOLERATED_BYTES]
