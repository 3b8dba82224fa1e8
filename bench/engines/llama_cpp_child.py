"""llama.cpp as a child process of `bench.engine`; needs llama-cpp-python, gguf, numpy, nothing of Baton.

Runs by path in an environment of its own: `ENV/bin/python bench/engines/llama_cpp_child.py FOLDER DTYPE`.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import gguf
import llama_cpp
import numpy as np

from bench.engines import model as shape
from bench.engines.case import Case, prompts_of, serve

_BATCH_TOKENS = 512


class LlamaCpp:
    """A model and its cache, driven by llama.cpp's own batches."""

    def __init__(self, path: Path) -> None:
        model_parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_parameters)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = 32 * 1024
        parameters.n_seq_max = 32
        parameters.kv_unified = True
        parameters.n_batch = parameters.n_ubatch = _BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = 1
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def __call__(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case."""
        prompts = prompts_of(case, seed)
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        started = time.process_time()
        for sequence, prompt in enumerate(prompts):
            for begin in range(0, len(prompt), _BATCH_TOKENS):
                piece = prompt[begin : begin + _BATCH_TOKENS]
                self._decode([(token, begin + index, sequence) for index, token in enumerate(piece)])
        if case.num_output_tokens == 1:
            return time.process_time() - started
        tokens = [prompt[-1] for prompt in prompts]
        started = time.process_time()
        for step in range(case.num_output_tokens - 1):
            position = case.num_prompt_tokens + step
            entries = [(token, position, sequence) for sequence, token in enumerate(tokens)]
            tokens = [int(row.argmax()) for row in self._decode(entries, all_logits=True)]
        return time.process_time() - started

    def _decode(self, entries: list[tuple[int, int, int]], *, all_logits: bool = False) -> list[np.ndarray]:
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = all_logits or index == len(entries) - 1
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        if not all_logits:
            return []
        pointers = [llama_cpp.llama_get_logits_ith(self._context, index) for index in range(len(entries))]
        return [np.ctypeslib.as_array(pointer, (shape.VOCABULARY_SIZE,)) for pointer in pointers]


def write_gguf(path: Path, dtype: str) -> None:
    """Write a model of the same shape with random weights: llama.cpp's rotation pairs other elements, at equal cost."""
    kind = gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(shape.VOCABULARY_SIZE)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(shape.MAX_CONTEXT_TOKENS)
    writer.add_embedding_length(shape.HIDDEN_SIZE)
    writer.add_block_count(shape.NUM_LAYERS)
    writer.add_feed_forward_length(shape.INTERMEDIATE_SIZE)
    writer.add_head_count(shape.NUM_HEADS)
    writer.add_head_count_kv(shape.NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(shape.HEAD_DIM)
    random = np.random.default_rng(0)

    def add(name: str, *size: int) -> None:
        is_matrix = len(size) == 2
        weights = random.standard_normal(size, dtype=np.float32) * 0.02 if is_matrix else np.ones(size, np.float32)
        if is_matrix and dtype != "float32":
            writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weights)

    hidden, kv = shape.HIDDEN_SIZE, shape.NUM_KV_HEADS * shape.HEAD_DIM
    add("token_embd.weight", shape.VOCABULARY_SIZE, hidden)
    add("output_norm.weight", hidden)
    for layer in range(shape.NUM_LAYERS):
        add(f"blk.{layer}.attn_norm.weight", hidden)
        add(f"blk.{layer}.ffn_norm.weight", hidden)
        add(f"blk.{layer}.attn_q.weight", shape.NUM_HEADS * shape.HEAD_DIM, hidden)
        add(f"blk.{layer}.attn_k.weight", kv, hidden)
        add(f"blk.{layer}.attn_v.weight", kv, hidden)
        add(f"blk.{layer}.attn_output.weight", hidden, shape.NUM_HEADS * shape.HEAD_DIM)
        add(f"blk.{layer}.ffn_gate.weight", shape.INTERMEDIATE_SIZE, hidden)
        add(f"blk.{layer}.ffn_up.weight", shape.INTERMEDIATE_SIZE, hidden)
        add(f"blk.{layer}.ffn_down.weight", hidden, shape.INTERMEDIATE_SIZE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _silence(_level: int, _text: bytes, _data: object) -> None:
    """Say nothing: the load of a model is hundreds of lines."""


def main(dtype: str) -> None:
    """Serve."""
    silence = llama_cpp.llama_log_callback(_silence)  # to be kept as long as it may be called
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, dtype)
        serve(LlamaCpp(path))


if __name__ == "__main__":
    main(sys.argv[2])
