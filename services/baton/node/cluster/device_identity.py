"""Which device a node computes on, so that routers know nodes that take each other's time."""

from __future__ import annotations

import uuid
from hashlib import blake2b
from pathlib import Path

from baton.engine.runners.base import ModelInfo

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Differs between machines, and is equal in all containers of one; of Linux."""


def device_id(info: ModelInfo, *, num_threads: int, num_cores: int, boot_id: Path = BOOT_ID) -> str:
    """Return MACHINE/DEVICE, equal for processes that take time of one device, unlike for all others.

    A mock engine is a device of its own, and so is a process on the CPU that takes no more than half of the cores: two
    of these have room beside each other.

    `boot_id` names the machine where it exists; elsewhere its network address does.
    """
    machine = boot_id.read_text("ascii") if boot_id.is_file() else f"{uuid.getnode():x}"
    name = blake2b(machine.strip().encode("ascii"), digest_size=4).hexdigest()
    if info.accelerator_id:
        return f"{name}/{info.accelerator_id}"
    if info.engine == "mock" or 2 * num_threads <= num_cores:
        return f"{name}/{info.engine}-{uuid.uuid4().hex[:8]}"
    return f"{name}/cpu"
