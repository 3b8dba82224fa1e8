"""How many pods a pool has over time, beside the seconds that prompts wait there, as numbers and as a picture."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.kubernetes.cluster import CommandError, run
from tests.kubernetes.release import Release

_FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


def num_pods_of(release: Release, pool: str) -> int:
    """Return how many pods a prefill pool has that are not going."""
    label = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component=prefill,baton/pool={pool}"
    found = release.cluster.get("pods", "--namespace", release.namespace, "--selector", label)["items"]
    return sum("deletionTimestamp" not in each["metadata"] for each in found)


class PoolRecord:
    """Looks at a pool every second while `watched`; times are seconds since then."""

    def __init__(self, release: Release, pool: str) -> None:
        self._release, self._pool = release, pool
        self._began = time.time()
        self._samples: list[tuple[float, int]] = []
        self._marks: list[tuple[float, str]] = []
        self._queue: Sequence[tuple[float, float]] = ()
        self._is_over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for the length of the context."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(60)

    def now(self) -> float:
        """Return the time."""
        return time.time() - self._began

    def mark(self, text: str) -> float:
        """Note what happens now, and return the time."""
        self._marks.append((round(self.now(), 1), text))
        return self._marks[-1][0]

    def num_pods(self) -> int:
        """Return the pods now."""
        return num_pods_of(self._release, self._pool)

    def counts(self) -> Sequence[int]:
        """Return how many pods there were at each look."""
        return [count for _, count in self._samples]

    def queue_seconds(self, prometheus: str) -> Sequence[tuple[float, float]]:
        """Return the sum over the pool's pods of the time until a new prompt's turn, as Prometheus has it."""
        labels = f'namespace="{self._release.namespace}",pod=~"{self._release.name}-prefill-{self._pool}-.*"'
        asked = {"query": f"sum(baton_node_queue_seconds{{{labels}}})", "step": "2", "start": str(self._began)}
        url = f"{prometheus}/api/v1/query_range?{urlencode({**asked, 'end': str(time.time())})}"
        found = json.loads(run([*self._release.cluster.prefix, sys.executable, "-c", _FETCH, url]))["data"]["result"]
        values = found[0]["values"] if found else []
        self._queue = [(round(at - self._began, 1), round(float(value), 3)) for at, value in values]
        return self._queue

    def numbers(self) -> dict[str, Any]:
        """Return all samples, for the file of results."""
        before = [0, *self.counts()]
        changes = [each for count, each in zip(before, self._samples, strict=False) if count != each[1]]
        return {"pods": changes, "queue_seconds": self._queue, "marks": self._marks}

    def draw(self, path: Path | None, queue: Sequence[tuple[float, float]]) -> None:
        """Draw pods and waiting time over time; nothing without a path."""
        if path is None:
            return
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # a second, which test runs without it are spared
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4.5), layout="constrained")
        FigureCanvasAgg(figure)  # on machines without a screen, too
        above = figure.subplots()
        times, counts = zip(*self._samples, strict=True)
        above.step(times, counts, where="post", color="tab:blue", label="pods")
        above.set(xlabel="seconds", ylabel="pods", ylim=(0, max(self.counts()) + 1), title="A prefill pool under KEDA")
        beside = above.twinx()
        beside.plot(
            [at for at, _ in queue],
            [seconds for _, seconds in queue],
            color="tab:orange",
            label="queue seconds, sum over pods",
        )
        beside.set(ylabel="queue seconds, sum over pods")
        for at, text in self._marks:
            above.axvline(at, color="grey", linestyle=":")
            above.text(at, above.get_ylim()[1], f" {text}", rotation=90, verticalalignment="top", color="grey")
        figure.legend(loc="outside lower center", ncols=2)
        figure.savefig(path)

    def _run(self) -> None:
        while not self._is_over.wait(1.0):
            try:
                self._samples.append((round(self.now(), 1), self.num_pods()))
            except CommandError:
                continue
