"""A program that writes one document after the other: the latest is kept."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

_READ_BYTES = 1 << 16
_MAX_DOCUMENT_BYTES = 4 << 20
LASTING_SECONDS = 5.0
"""An older document says nothing about now; a machine that was asleep has one."""


class DocumentStream:
    """Runs the program until the program or this process ends; output after that has no reader and ends the program.

    `end` is the last bytes of every document.
    """

    def __init__(self, command: Sequence[str], end: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = command[0]
        self._end = end
        self._clock = clock
        self._last: bytes | None = None
        self._arrived = 0.0
        self._process = subprocess.Popen(  # noqa: S603 - programs that the sensors name
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name=self._name, daemon=True)
        self._reader.start()

    def latest(self) -> bytes | None:
        """Return the last whole document; None before the first, and where it is old.

        Raises:
            OSError: If the program has ended.
        """
        if not self._reader.is_alive():
            raise OSError(f"{self._name} ended with status {self._process.wait()}")
        return self._last if self._clock() - self._arrived <= LASTING_SECONDS else None

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _read(self, output: IO[bytes]) -> None:
        unread = b""
        with output:
            while data := output.read1(_READ_BYTES):  # type: ignore[attr-defined]
                *whole, unread = (unread + data).split(self._end)
                if whole:
                    self._last, self._arrived = whole[-1] + self._end, self._clock()
                if len(unread) > _MAX_DOCUMENT_BYTES:
                    self._process.kill()
