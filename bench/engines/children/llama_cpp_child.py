"""llama.cpp as a child process of `baton bench engine`; needs llama-cpp-python, gguf, numpy, nothing of Baton.

Runs by path in an environment of its own: `ENV/bin/python bench/engines/children/llama_cpp_child.py FOLDER DTYPE`.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import gguf
import llama_cpp
import numpy as np

from bench.engines import models as shape
from bench.engines.case import Case, prompts_of, serve

_BATCH_TOKENS = 512
_MAX_SEQUENCES = 32
_STREAM_TOKENS = 640
"""Of a sequence that decodes: its prompt and its steps."""


class LlamaCpp:
    """A model and its caches, driven by llama.cpp's own batches: one cache for prompts, one for decoding.

    Each sequence of the second has a stream of its own, with the KV of one prompt, copied: what a step costs does not
    depend on what the KV says.
    """

    def __init__(self, path: Path) -> None:
        model_parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_parameters)
        self._alone = self._new_context(1, shape.MAX_CONTEXT_TOKENS)
        self._together = self._new_context(_MAX_SEQUENCES, _STREAM_TOKENS)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self._num_ready = 0

    def __call__(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case."""
        prompts = prompts_of(case, seed)
        if not case.is_decoding:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._alone), True)
            started = time.process_time()
            for prompt in prompts:
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._alone), 0, -1, -1)
                self._prefill(self._alone, prompt)
            return time.process_time() - started
        self._make_ready(case, prompts[0])
        tokens = [prompt[-1] for prompt in prompts]
        started = time.process_time()
        for step in range(case.num_output_tokens - 1):
            tokens = self._step(tokens, case.num_prompt_tokens + step)
        return time.process_time() - started

    def _new_context(self, num_sequences: int, num_tokens: int) -> Any:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = num_sequences * num_tokens
        parameters.n_seq_max = num_sequences
        parameters.kv_unified = False
        parameters.n_batch = parameters.n_ubatch = _BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = 1
        return llama_cpp.llama_init_from_model(self._model, parameters)

    def _make_ready(self, case: Case, prompt: list[int]) -> None:
        """Leave as many sequences as a case has with the KV of the prompt and no more."""
        memory = llama_cpp.llama_get_memory(self._together)
        if not self._num_ready:
            self._prefill(self._together, prompt)
            self._num_ready = 1
        self._forget_steps(case)
        for sequence in range(self._num_ready, case.num_prompts):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        self._num_ready = max(self._num_ready, case.num_prompts)
        self._step([prompt[-1]] * case.num_prompts, case.num_prompt_tokens)  # copies are made by the next batch
        self._forget_steps(case)

    def _forget_steps(self, case: Case) -> None:
        memory = llama_cpp.llama_get_memory(self._together)
        for sequence in range(self._num_ready):
            llama_cpp.llama_memory_seq_rm(memory, sequence, case.num_prompt_tokens, -1)

    def _prefill(self, context: Any, prompt: list[int]) -> None:
        for begin in range(0, len(prompt), _BATCH_TOKENS):
            piece = prompt[begin : begin + _BATCH_TOKENS]
            self._decode(context, [(token, begin + index, 0) for index, token in enumerate(piece)])

    def _step(self, tokens: list[int], position: int) -> list[int]:
        entries = [(token, position, sequence) for sequence, token in enumerate(tokens)]
        return [int(row.argmax()) for row in self._decode(self._together, entries, all_logits=True)]

    def _decode(
        self, context: Any, entries: list[tuple[int, int, int]], *, all_logits: bool = False
    ) -> list[np.ndarray]:
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = all_logits or index == len(entries) - 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        if not all_logits:
            return []
        pointers = [llama_cpp.llama_get_logits_ith(context, index) for index in range(len(entries))]
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
