"""A pass under way on a device that the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.engine.runners.torch.hand_over import HandOver
from baton.engine.runners.torch.logits import TorchLogits
from baton.engine.runners.torch.upload import upload


class LaunchedPass:
    """Tokens of a pass, copied to the host behind it; asked for them, it waits for that copy alone.

    Args:
        tokens: Chosen in each row of the device by each step: [num_steps, num_device_rows], int64.
        last: Those of the last step, at the place from which the next pass may read them: [num_device_rows], int64.
        rows: Row of the device for each row of the pass.
        logits: Of the last step: [num_device_rows, vocabulary_size].
        hand_over: What the pass has still to hand out before it is done.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        last: torch.Tensor,
        rows: Sequence[int],
        logits: torch.Tensor,
        hand_over: HandOver | None = None,
    ) -> None:
        self._hand_over = hand_over
        self.device_rows = rows
        self._last = last
        self._num_steps = len(tokens)
        self._logits: torch.Tensor | None = logits
        self._copied: torch.cuda.Event | None = None
        if tokens.device.type == "cuda":
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self._host = tokens.clone()

    def fed(self, rows: Sequence[int]) -> torch.Tensor:
        """Return, on the device, what the next pass feeds after some rows; one that is not finite counts as 0."""
        device_rows = upload([self.device_rows[row] for row in rows], self._last.device, torch.int64)
        return self._last[device_rows].clamp(min=0)

    def tokens(self, step: int = 0) -> list[int]:
        """Return the token chosen from each row of a step, waiting for the pass."""
        self._wait()
        chosen: list[int] = self._host[step].tolist()
        return [chosen[row] for row in self.device_rows]

    def logits(self) -> TorchLogits:
        """Return the logits of the only step; a step that was replayed has them until the next pass is launched."""
        self._wait()
        assert self._logits is not None, "logits are gone: another pass has been launched"
        rows = torch.tensor(list(self.device_rows), device=self._logits.device)
        return TorchLogits(self._logits[rows])

    def _wait(self) -> None:
        """Wait for the tokens, handing out layers as they arrive."""
        if self._hand_over is not None:
            self._hand_over.drain()
        if self._copied is not None:
            self._copied.synchronize()

    def cut(self, num_steps: int) -> int:  # noqa: ARG002 - the device has been told of all
        """Return the number of steps: the device has been told of all."""
        return self._num_steps

    def forget_logits(self) -> None:
        """Let go of logits that are about to be overwritten."""
        self._logits = None
