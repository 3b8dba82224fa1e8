"""Compiles Triton's driver while an image is built, so that the image needs no compiler; needs gcc.

python triton_driver.py VENV writes VENV/triton/cuda_utils.so and VENV/triton/cc. Triton compiles one C file at its
first kernel, with the compiler that CC names. In the image that is this `cc`, which hands out what was compiled here,
and refuses every other file.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

COMPILER = """#!/bin/sh
# Stands in for a C compiler: hands out Triton's driver, compiled while the image was built.
source=$1
folder=$(dirname "$0")
if ! cmp -s "$source" "$folder/cuda_utils.c"; then
    echo "this image has no C compiler: it brings Triton's driver alone, and $source is another file" >&2
    exit 1
fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then exec cp "$folder/cuda_utils.so" "$2"; fi
    shift
done
echo "expected -o FILE" >&2
exit 1
"""


def compile_driver(backend: Path, folder: Path) -> None:
    """Compile the driver of a Triton backend into a folder, with what hands it out.

    The machine that builds has no CUDA driver: an empty library stands in, so that the name libcuda.so.1 is noted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "cuda_utils.c"
    source.write_bytes((backend / "driver.c").read_bytes())
    with tempfile.TemporaryDirectory() as stub:
        subprocess.run(
            ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", f"{stub}/libcuda.so.1", "-x", "c", "/dev/null"],
            check=True,
        )
        command = ["gcc", str(source), "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", str(folder / "cuda_utils.so")]
        command += [f"-I{backend / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
        command += ["-Wl,--no-as-needed", f"-L{stub}", "-l:libcuda.so.1"]
        subprocess.run(command, check=True)
    compiler = folder / "cc"
    compiler.write_text(COMPILER, "utf-8")
    compiler.chmod(0o755)


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    (found,) = environment.glob("lib/python3.*/site-packages/triton/backends/nvidia")
    compile_driver(found, environment / "triton")
    print(f"{environment / 'triton'}: {(environment / 'triton' / 'cuda_utils.so').stat().st_size} bytes")
