"""Environment of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli.local import environment
from baton.cli.local.environment import threads_per_worker, worker_environment
from baton.config.container_limits import Cores


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its part, and at least one."""
    monkeypatch.setattr(environment, "usable_cores", lambda: Cores(8, "8 in the machine"))

    assert [threads_per_worker(count) for count in (1, 2, 3, 100)] == [8, 4, 2, 1]


def test_engines_do_not_spin_and_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines on one machine must not hold the cores while they wait."""
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)

    variables = worker_environment("torch", 2)

    assert variables["GOMP_SPINCOUNT"] == "0"
    assert int(variables["OMP_NUM_THREADS"]) >= 1
    assert "LD_PRELOAD" not in variables


def test_what_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of this process is inherited, not replaced."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    assert "OMP_NUM_THREADS" not in worker_environment("torch", 2)


def test_mlx_on_linux_gets_openblas_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is preloaded only if it exists, and only for MLX."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    library = tmp_path / "aarch64-linux-gnu" / "openblas-pthread" / "libblas.so.3"
    assert "LD_PRELOAD" not in worker_environment("mlx", 1, library_root=tmp_path)
    library.parent.mkdir(parents=True)
    library.touch()

    assert worker_environment("mlx", 1, library_root=tmp_path)["LD_PRELOAD"] == str(library)
    assert "LD_PRELOAD" not in worker_environment("torch", 1, library_root=tmp_path)
