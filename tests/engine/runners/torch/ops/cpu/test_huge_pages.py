"""Weights and KV in huge pages, where the system has them."""

from __future__ import annotations

import pytest
import torch

from baton.engine.runners.torch.ops.cpu import huge_pages
from baton.engine.runners.torch.ops.cpu.huge_pages import PAGE_BYTES, MemoryRange, memory_of, use_huge_pages, zeros


def test_memory_keeps_what_it_holds_and_where() -> None:
    """Whether the system moves it or refuses to, nobody who has an address notices."""
    tensor = torch.arange(10 << 20, dtype=torch.int32)
    expected, address = int(tensor.sum()), tensor.data_ptr()

    num_bytes = use_huge_pages([memory_of(tensor)])

    assert (int(tensor.sum()), tensor.data_ptr()) == (expected, address)
    assert num_bytes % PAGE_BYTES == 0


def test_neighbours_are_advised_together_and_little_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page that holds a byte is in a run, once; what fits into a cache is not worth a call."""
    advised: list[tuple[int, int]] = []

    def advise(address: int, num_bytes: int, _advice: int) -> int:
        advised.append((address // PAGE_BYTES, num_bytes // PAGE_BYTES))
        return 0 if len(advised) == 1 else -1

    monkeypatch.setattr(huge_pages, "_system_call", lambda: advise)
    page, mebibyte = PAGE_BYTES, 1 << 20
    ranges = [
        MemoryRange(9 * page + 5, 40 * mebibyte),
        MemoryRange(3 * page + mebibyte, page),
        MemoryRange(29 * page, mebibyte),
    ]

    assert use_huge_pages([MemoryRange(0, 20 * mebibyte)]) == 0
    assert advised == []
    assert use_huge_pages(ranges) == 2 * page, "a refused run counts"
    assert advised == [(3, 2), (9, 21)]


def test_a_tensor_of_zeros_is_one_with_and_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a system that knows no such advice."""
    sizes = (3, PAGE_BYTES)

    assert not zeros(sizes, torch.int16, torch.device("cpu")).any()
    monkeypatch.setattr(huge_pages, "_system_call", lambda: None)
    assert not zeros(sizes, torch.int16, torch.device("cpu")).any()
