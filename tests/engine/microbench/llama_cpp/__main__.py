"""Baton's engine beside llama.cpp: one random model of SmolLM-135M's shape, in turns; tokens per second of the wall.

`PYTHONPATH=tests python -m engine.microbench.llama_cpp FOLDER --out FILE`. FOLDER has what npm's package
@node-llama-cpp/linux-x64 calls bins/linux-x64, libllama and its CPU backends, in `lib`, and the sources that
node-llama-cpp carries as a git bundle in `src`. Needs g++ and the package gguf, which writes the model for llama.cpp.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.results_file import describe_machine, write_results

CASES = {"p512": ("prompt 512", 512), "d1": ("decode 1 32 128", 32), "d8": ("decode 8 16 64", 128)}
"""What children are told (tokens of a prompt; sequences, tokens of each, tokens before them), and tokens of it."""
CONFIG = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of a layer, by llama.cpp's."""


class Child:
    """A process that computes what it is told and says how many seconds that took."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        while (line := self._told()) != "ready":
            if not line and process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")

    @property
    def process_id(self) -> int:
        """Return its process's."""
        return self._process.pid

    def seconds(self, order: str) -> float:
        """Return how long an order took."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return float(self._told())

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> int:
    """Measure, print a line per case, write the file."""
    options = _parser().parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(options.folder, Path(folder, "child"))
        for dtype in ("float32", "bfloat16"):
            model, gguf = Path(folder, dtype), Path(folder, f"{dtype}.gguf")
            write_gguf(write_model(CONFIG, dtype, model), "BF16" if dtype == "bfloat16" else "F32", gguf)
            for num_threads in (1, 2):
                theirs = [str(program), str(gguf), str(num_threads), str(options.folder / "lib")]
                own = [sys.executable, "-m", "engine.microbench.llama_cpp.baton", str(model), dtype, str(num_threads)]
                with ExitStack() as stack:
                    children = [stack.enter_context(child(command)) for command in (own, theirs)]
                    for row in _measured(children, options.rounds):
                        rows.append({"dtype": dtype, "threads": num_threads, **row})
                        print(json.dumps(rows[-1]), flush=True)
    write_results(options.out, {"machine": describe_machine(), "rows": rows})
    return 0


def _measured(children: list[Child], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield, per case, both's tokens per second of every round after the first, and the median of their ratios."""
    for name, (order, num_tokens) in CASES.items():
        taken = [[child.seconds(order) for child in children] for _ in range(rounds + 1)][1:]
        rates = [[round(num_tokens / seconds, 1) for seconds in of_round] for of_round in taken]
        ratio = round(median(theirs / own for own, theirs in taken), 3)
        yield {"case": name, "baton": [own for own, _ in rates], "llama_cpp": [it for _, it in rates], "ratio": ratio}


@contextmanager
def child(command: list[str]) -> Iterator[Child]:
    """Run a command that takes orders as long as the context lasts."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def compiled(folder: Path, program: Path) -> Path:
    """Compile what computes by llama.cpp; return the program."""
    sources, libraries = folder / "src", sorted((folder / "lib").glob("libllama.v*.so"))
    libraries += [*sorted((folder / "lib").glob("libggml.v*.so")), folder / "lib" / "libggml-base.so"]
    headers = [f"-I{sources / room / 'include'}" for room in (".", "ggml")]
    source = Path(__file__).with_name("child.cpp")
    command = ["g++", "-O2", *headers, str(source), "-o", str(program), *map(str, libraries)]
    subprocess.run([*command, f"-Wl,-rpath,{folder / 'lib'}"], check=True)
    return program


def write_model(config: LlamaConfig, dtype: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write random weights as safetensors; return them in the names of transformers."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = model.state_dict()
    return tensors


def write_gguf(tensors: dict[str, torch.Tensor], quantization: str, file: Path) -> None:
    """Write weights of CONFIG as GGUF, matrices in a format that GGMLQuantizationType names."""
    gguf = importlib.import_module("gguf")
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{index}" for index in range(CONFIG.vocab_size)])
    writer.add_token_scores([0.0] * CONFIG.vocab_size)
    writer.add_token_types([1] * CONFIG.vocab_size)

    def add(
        name: str, tensor: torch.Tensor, turned: Callable[[torch.Tensor], torch.Tensor] = lambda each: each
    ) -> None:
        values = turned(tensor).float().numpy()
        kind = gguf.GGMLQuantizationType[quantization] if quantization != "F32" and values.ndim > 1 else None
        if kind is not None:
            values = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)

    add("token_embd", tensors["model.embed_tokens.weight"])
    add("output_norm", tensors["model.norm.weight"])
    for layer in range(CONFIG.num_hidden_layers):
        for name, own in _NAMES.items():
            turned = _paired if name in ("attn_q", "attn_k") else lambda each: each
            add(f"blk.{layer}.{name}", tensors[f"model.layers.{layer}.{own}.weight"], turned)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(weight: torch.Tensor) -> torch.Tensor:
    """Return queries or keys as llama.cpp rotates them: neighbours, not halves, are a pair."""
    head_dim = CONFIG.hidden_size // CONFIG.num_attention_heads
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.microbench.llama_cpp", description=__doc__)
    parser.add_argument("folder", type=Path, help="lib and src of llama.cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
