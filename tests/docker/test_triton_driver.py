"""Triton's driver, compiled ahead for an image without a compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docker.triton_driver import compile_driver

_USE = """
from triton.backends.nvidia.driver import CudaUtils
utils = CudaUtils()
print(callable(utils.launch), callable(utils.load_binary))
"""

_TRITON = importlib.util.find_spec("triton")

pytestmark = pytest.mark.skipif(
    _TRITON is None or shutil.which("gcc") is None or sys.platform != "linux", reason="needs Triton and gcc on Linux"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled driver."""
    folder: Path = tmp_path_factory.mktemp("triton")
    compile_driver(_backend(), folder)
    return folder


def test_triton_takes_the_driver_where_there_is_no_compiler(driver: Path, tmp_path: Path) -> None:
    """With CC as the image sets it and nothing else on the PATH, Triton's own start-up code finds what it needs."""
    environment = {
        "CC": str(driver / "cc"),
        "PATH": _path_without_compiler(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "TRITON_LIBCUDA_PATH": str(_stand_in_for_libcuda(driver, tmp_path)),
        "LD_LIBRARY_PATH": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", _USE], env=environment, capture_output=True, text=True, timeout=120)

    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr


def test_another_file_is_refused(driver: Path, tmp_path: Path) -> None:
    """What the image did not bring is not compiled, and the message says so."""
    (tmp_path / "other.c").write_text("int other;\n")
    done = subprocess.run(
        [str(driver / "cc"), str(tmp_path / "other.c"), "-o", str(tmp_path / "other.so")],
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert done.returncode == 1
    assert "no C compiler" in done.stderr
    assert not (tmp_path / "other.so").exists()


def _backend() -> Path:
    assert _TRITON is not None
    assert _TRITON.origin is not None
    return Path(_TRITON.origin).parent / "backends" / "nvidia"


def _path_without_compiler(folder: Path) -> str:
    """Return a PATH with what the stand-in's script calls, and no more."""
    folder.mkdir()
    for name in ("sh", "cmp", "cp", "dirname"):
        found = shutil.which(name)
        assert found is not None
        os.symlink(found, folder / name)
    return str(folder)


def _stand_in_for_libcuda(driver: Path, folder: Path) -> Path:
    """Make a library with every function that the driver takes from CUDA's, so that it can be loaded here."""
    undefined = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", str(driver / "cuda_utils.so")],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout.split()
    names = sorted({name for name in undefined if name.startswith("cu")})
    source = folder / "cuda.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    library = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return folder
