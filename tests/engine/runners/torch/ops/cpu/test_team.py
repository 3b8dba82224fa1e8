"""Threads that run one kernel together."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import (
    ALONE,
    run_by_team,
    share,
    team_of,
    wait_for_all,
)


@kernel
def _count_in_rounds(member: Any, seen: Any, own: Any) -> None:
    for each in range(seen.shape[0]):
        own[member[0]] += 1
        wait_for_all(member)
        seen[each, member[0]] = own[: member[1]].sum()
        wait_for_all(member)


@kernel
def _run(team: Any, seen: Any, own: Any) -> None:
    run_by_team(team, _count_in_rounds, (seen, own))


@kernel
def _share(count: Any, unit: Any, member: Any) -> Any:
    return share(count, unit, member)


@pytest.mark.parametrize("num_threads", [2, 7])
def test_a_barrier_lets_nobody_through_before_all_have_come(num_threads: int) -> None:
    """What all wrote before it, each sees after it, round by round; also where threads are more than cores."""
    team = team_of(num_threads)
    if team == ALONE:
        pytest.skip("torch's threads cannot be asked here")
    seen, own = np.zeros((500, num_threads), np.int64), np.zeros(num_threads, np.int64)

    _run(team, seen, own)

    assert np.array_equal(seen, np.arange(1, 501)[:, None] * np.full(num_threads, num_threads))


@pytest.mark.parametrize(("count", "unit"), [(9, 1), (9, 2), (1, 1), (0, 1), (3008, 32)])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_shares_are_all_and_none_is_twice(count: int, unit: int, size: int) -> None:
    """Each begins where the one before it ends, at a multiple of the unit."""
    shares = [_share(count, unit, (index, size, 0)) for index in range(size)]

    assert [first for first, _ in shares] == [0, *(end for _, end in shares[:-1])]
    assert shares[-1][1] == count
    assert all(first % unit == 0 or first == count for first, _ in shares)


def test_a_torch_whose_threads_cannot_be_asked_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an OpenMP that has other entries."""

    def refuse(_path: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refuse)

    assert team_of.__wrapped__(2) == ALONE
