"""How the ranks of a model make shares whole."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import distributed

_TIMEOUT_SECONDS = 120.0


class Ranks(Protocol):
    """A rank and its place among all."""

    rank: int
    """This one, from 0."""
    size: int
    """All of them, 1 or more."""

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; the own one may be overwritten."""

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors beside each other, along the last dimension."""

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, below 2**63."""


class Alone:
    """A model that is held whole."""

    rank = 0
    size = 1

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def least(self, number: int) -> int:
        """Return the number."""
        return number


class ProcessRanks:
    """Ranks in processes of one host, over NCCL between GPUs and gloo between CPUs.

    Args:
        rank: This process's.
        size: Number of processes.
        meeting_point: A file that does not exist, the same for all.
        device: The process's own; torch's default group is made for it.
    """

    def __init__(self, rank: int, size: int, meeting_point: Path, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        store = distributed.FileStore(str(meeting_point), size)
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=_timeout(), **_bound_to(device)
        )

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; the own one is overwritten."""
        share = share.contiguous()
        distributed.all_reduce(share)
        return share

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors beside each other, along the last dimension."""
        share = share.contiguous()
        gathered = share.new_empty(self.size, *share.shape)
        distributed.all_gather(list(gathered), share)
        return gathered.movedim(0, -2).flatten(-2)

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, below 2**63."""
        share = torch.tensor(number, device=self._device)
        distributed.all_reduce(share, distributed.ReduceOp.MIN)
        return int(share.item())

    def close(self) -> None:
        """Leave the group."""
        distributed.destroy_process_group()


def _timeout() -> object:
    from datetime import timedelta

    return timedelta(seconds=_TIMEOUT_SECONDS)


def _bound_to(device: torch.device) -> dict[str, torch.device]:
    return {"device_id": device} if device.type == "cuda" else {}
