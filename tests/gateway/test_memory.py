"""What a gateway holds of requests fits into its container: the size of one, and all of them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.config.container_limits import Memory
from baton.errors import ConfigurationError
from baton.gateway.memory import HOLDING_BYTES, LONG_CHARACTERS, MOST_BODY_BYTES, TOKENIZING_BYTES, memory_of
from baton.gateway.settings import GatewaySettings

MIB, GIB = 1 << 20, 1 << 30
MACHINE = Memory(64 * GIB, 40 * GIB)
STARTED = 130 * MIB
"""What a gateway has before it serves."""


def settings_of(folder: Path, **given: object) -> GatewaySettings:
    """Return settings of a gateway."""
    return GatewaySettings(model_dir=folder, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [512 * MIB, GIB, 2 * GIB, 4 * GIB])
@pytest.mark.parametrize("given", [{}, {"tokenizer_threads": 2}])
def test_what_requests_take_stays_below_nine_tenths_of_the_limit(
    tmp_path: Path, limit: int, given: dict[str, int]
) -> None:
    """The largest is tokenized, where each byte is a token, beside short ones in every thread; all others are held."""
    settings = settings_of(tmp_path, **given)
    memory = memory_of(settings, Memory(limit, limit - STARTED), MACHINE)
    tokenizing = (settings.tokenizer_threads * LONG_CHARACTERS + memory.max_body_bytes) * TOKENIZING_BYTES

    assert STARTED + tokenizing + memory.held_bytes * HOLDING_BYTES <= 0.9 * limit
    assert memory.max_body_bytes >= 256 << 10
    assert memory.held_bytes >= 4 * memory.max_body_bytes


def test_a_large_machine_takes_large_requests(tmp_path: Path) -> None:
    """8 MiB, as many as the gateway takes."""
    memory = memory_of(settings_of(tmp_path), MACHINE, MACHINE)

    assert memory.max_body_bytes == MOST_BODY_BYTES
    assert memory.held_bytes > 100 * MOST_BODY_BYTES


def test_processes_share_what_there_is(tmp_path: Path) -> None:
    """Each has its part of the container."""
    pod = Memory(2 * GIB, 2 * GIB - STARTED)
    one = memory_of(settings_of(tmp_path), pod, MACHINE)
    each = memory_of(settings_of(tmp_path, processes=2, metrics_port=9000), pod, MACHINE)

    assert each.held_bytes == pytest.approx(one.held_bytes / 2, rel=0.03)


def test_a_size_that_cannot_fit_is_refused_with_the_sum(tmp_path: Path) -> None:
    """The former default in a pod of 512 MiB: one such request would have ended it."""
    with pytest.raises(ConfigurationError) as refusal:
        memory_of(settings_of(tmp_path, max_body_bytes=8 * MIB), Memory(512 * MIB, 382 * MIB), MACHINE)

    assert refusal.value.message == (
        "max_body_bytes: each byte takes 240 while it is tokenized, and 16 until its answer has ended: "
        "max_body_bytes 2.01 GB + requests in work at least 537 MB + short prompts 15.7 MB = 2.57 GB "
        "do not fit into 347 MB: "
        "401 MB are free of the limit of 537 MB, less 53.7 MB in reserve"
    )
