"""`baton bench`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from baton.cli.bench import BENCHMARKS, find_bench_home, run_benchmark
from baton.installation import install_line
from cli.commands import baton

_WITHOUT_HTTPTOOLS = """
import sys

sys.modules["httptools"] = None
"""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_shows_its_own_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are the module's: `--help` reaches it. In this process, which imports frameworks once."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("", ".__main__"):
        monkeypatch.delitem(sys.modules, f"{BENCHMARKS[name].module}{module}", raising=False)

    with pytest.raises(SystemExit) as ended:
        run_benchmark(name, ["--help"])

    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert printed.startswith(f"usage: baton bench {name} ")
    assert "--out" in printed


def test_every_runnable_module_of_bench_is_a_command() -> None:
    """A benchmark that can be started by `python -m` is a line of BENCHMARKS."""
    bench = find_bench_home() / "bench"
    runnable = {
        ".".join(path.relative_to(bench.parent).with_suffix("").parts).removesuffix(".__main__")
        for path in bench.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }

    assert {benchmark.module for benchmark in BENCHMARKS.values() if benchmark.folder == "."} == runnable


def test_the_group_lists_what_there_is() -> None:
    """Name and summary of each."""
    result = baton("bench", "--help")

    assert result.returncode == 0
    assert all(re.search(rf"\b{name}\b", result.stdout) for name in BENCHMARKS)


def test_a_benchmark_leaves_with_its_own_status() -> None:
    """2 for wrong options, and the option is named."""
    result = baton("bench", "serve", "--dataset", "nothing")

    assert result.returncode == 2
    assert "--dataset" in result.stderr


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    """As any unknown command."""
    result = baton("bench", "nothing")

    assert result.returncode == 2
    assert "nothing" in result.stderr


def test_a_missing_package_is_named_with_the_extra_to_install(tmp_path: Path) -> None:
    """Without a traceback."""
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_HTTPTOOLS)

    result = baton("bench", "serve", "--help", environment={"PYTHONPATH": _with_path(tmp_path)})

    assert result.returncode == 2
    assert "httptools" in result.stderr
    assert install_line("bench") in result.stderr
    assert "Traceback" not in result.stderr


def _with_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
