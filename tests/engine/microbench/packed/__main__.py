"""Weights in 4 bits on a CPU: Baton's engine by them and by the same in 16 bits, mlx-lm and llama.cpp, in turns.

`PYTHONPATH=tests python -m engine.microbench.packed --out FILE`: a random model of SmolLM-135M's shape, its weights in
4 bits (MLX's affine in groups of 64), tokens per second of the wall, and the resident memory that the model takes.
`--llama-cpp FOLDER` adds llama.cpp on Q4_0; engine.microbench.llama_cpp says what is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from transformers import LlamaConfig

from bench.results_file import describe_machine, write_results
from engine.microbench.llama_cpp.__main__ import CASES, CONFIG, child, compiled, write_gguf, write_model

_GROUP_SIZE, _BITS = 64, 4
_MLX_CASES = {"d1": ("decode 1 4 4", 4)}
"""mlx-lm takes about a second for a token on a CPU, in prompts too: it decodes after four, the others after 128."""
_NUM_BLOCKS = 4
"""Where memory is measured: K and V of a few tokens."""
_TINY = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1, vocab_size=256)


def main() -> int:
    """Measure, print a line per case, write the file."""
    options = _parser().parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wide, packed = folder / "bfloat16", folder / "packed"
        model = write_model(CONFIG, "bfloat16", wide)
        _pack(wide, packed)
        write_model(_TINY, "bfloat16", folder / "tiny")
        _pack(folder / "tiny", folder / "tiny-packed")
        memory = _memory(packed, folder / "tiny-packed")
        print(json.dumps(memory), flush=True)
        commands = {
            "baton": _baton(packed, options.dtype),
            "baton_wide": _baton(wide, options.dtype),
            "mlx_lm": [sys.executable, "-m", "engine.microbench.packed.mlx", str(packed)],
        }
        if options.llama_cpp:
            program, gguf = compiled(options.llama_cpp, folder / "child"), folder / "q4.gguf"
            write_gguf(model, "Q4_0", gguf)
            commands["llama_cpp"] = [str(program), str(gguf), "{threads}", str(options.llama_cpp / "lib")]
        for num_threads in options.threads:
            rows += _measured(commands, num_threads, options.rounds)
            commands.pop("mlx_lm", None)  # knows no number of threads
    if options.out:
        write_results(options.out, {"machine": describe_machine(), "memory": memory, "rows": rows})
    return 0


def _measured(commands: dict[str, list[str]], num_threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return, per case, tokens per second of every round after the first, and the medians of Baton's times theirs."""
    rows = []
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(child([part.format(threads=num_threads) for part in command]))
            for name, command in commands.items()
        }
        for case, asked in CASES.items():
            orders = {name: _MLX_CASES.get(case) if name == "mlx_lm" else asked for name in children}
            told = {name: order for name, order in orders.items() if order}
            rates = [
                {name: num_tokens / children[name].seconds(order) for name, (order, num_tokens) in told.items()}
                for _ in range(rounds + 1)
            ][1:]
            row = {name: [round(each[name], 1) for each in rates] for name in told}
            ratios = {f"x_{name}": round(median(each["baton"] / each[name] for each in rates), 3) for name in told}
            rows.append({"threads": num_threads, "case": case, **row, **ratios})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _memory(packed: Path, tiny: Path) -> dict[str, float]:
    """Return what a model adds to the memory of a process, beyond what one of no size does, beside its file's bytes.

    Pages of the file that the process has mapped are apart: any of them may go, and one copy does for all processes.
    """
    own, mapped = [], []
    for folder in (
        packed,
        tiny,
    ) * 2:  # the first of each may compile kernels, which takes memory; the second finds them
        command = [part.format(threads=1) for part in _baton(folder, "bfloat16")]
        with child([*command, str(_NUM_BLOCKS)]) as engine:
            engine.seconds("decode 1 4 8")
            pages = [int(part) for part in Path(f"/proc/{engine.process_id}/statm").read_text().split()]
        own.append((pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE"))
        mapped.append(pages[2] * os.sysconf("SC_PAGE_SIZE"))
    file_bytes = sum(file.stat().st_size for file in packed.glob("*.safetensors"))
    grown, ratio = own[2] - own[3], round((own[2] - own[3]) / file_bytes, 3)
    return {"file_bytes": file_bytes, "own_bytes": grown, "mapped_bytes": mapped[2] - mapped[3], "ratio": ratio}


def _baton(folder: Path, dtype: str) -> list[str]:
    return [sys.executable, "-m", "engine.microbench.llama_cpp.baton", str(folder), dtype, "{threads}"]


def _pack(source: Path, folder: Path) -> None:
    """Write a folder as `mlx_lm.convert -q` does."""
    model, config = load_model(source)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(model, config, group_size=_GROUP_SIZE, bits=_BITS)
    save_model(folder, model)
    save_config(config, folder / "config.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.microbench.packed", description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", help="in what Baton computes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-cpp", type=Path, help="lib and src of llama.cpp")
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
