"""transformers as a child process of `baton bench engine`: its forward loop, or its continuous batching."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, DynamicCache, GenerationConfig
from transformers.utils import logging as transformers_logging

from bench.engines.case import Case, prompts_of, serve

_NUM_CACHE_BLOCKS = 128
"""Blocks of 256 tokens: what the largest case needs, twice."""
_MAX_BATCH_TOKENS = 1024
_TIMEOUT_SECONDS = 300.0


class ForwardLoop:
    """The model called by hand: one prompt at a time, or one token for all sequences of a batch together.

    All have the KV of one prompt, copied: what a step costs does not depend on what the KV says.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._caches: dict[Case, tuple[Any, torch.Tensor]] = {}

    def __call__(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case."""
        prompts = prompts_of(case, seed)
        with torch.inference_mode():
            if not case.is_decoding:
                started = time.process_time()
                for prompt in prompts:
                    self._prefill([prompt])
                return time.process_time() - started
            cache, token_ids = self._decodable(case, prompts[0])
            started = time.process_time()
            for _ in range(case.num_output_tokens - 1):
                logits = self._model(token_ids, past_key_values=cache, use_cache=True).logits
                token_ids = logits[:, -1:].argmax(-1)
            return time.process_time() - started

    def _decodable(self, case: Case, prompt: list[int]) -> tuple[Any, torch.Tensor]:
        """Return the cache of a case with nothing but prompts, and the first tokens."""
        if case not in self._caches:
            cache, token_ids = self._prefill([prompt])
            cache.batch_repeat_interleave(case.num_prompts)
            self._caches[case] = cache, token_ids.repeat(case.num_prompts, 1)
        cache, token_ids = self._caches[case]
        if num_more := cache.get_seq_length() - case.num_prompt_tokens:
            cache.crop(-num_more)
        return cache, token_ids

    def _prefill(self, prompts: list[list[int]]) -> tuple[Any, torch.Tensor]:
        cache = DynamicCache()
        logits = self._model(torch.tensor(prompts), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return cache, logits[:, -1:].argmax(-1)


class ContinuousBatching:
    """transformers' own scheduler; decoding is what a run costs beyond the same prompts with one token of output.

    Both find in its prefix cache what it keeps: its blocks have 256 tokens.
    """

    def __init__(self, model: Any) -> None:
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=_NUM_CACHE_BLOCKS, max_batch_tokens=_MAX_BATCH_TOKENS
            ),
        )
        self._manager.start()

    def __call__(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case."""
        first = self._generate(prompts_of(case, seed), 1)
        if not case.is_decoding:
            return first
        first = self._generate(prompts_of(case, seed), 1)  # with as much of the prompts cached as in the next run
        return self._generate(prompts_of(case, seed), case.num_output_tokens) - first

    def _generate(self, prompts: list[list[int]], num_tokens: int) -> float:
        started = time.process_time()
        self._manager.add_requests(prompts, max_new_tokens=num_tokens)
        lengths: list[int] = []
        while len(lengths) < len(prompts):
            result = self._manager.get_result(timeout=_TIMEOUT_SECONDS)
            if result is None:
                raise RuntimeError("continuous batching gave no result in time")
            lengths.append(len(result.generated_tokens))
        seconds = time.process_time() - started
        if lengths != [num_tokens] * len(prompts):
            raise RuntimeError(f"asked for {num_tokens} tokens, got {lengths}")
        return seconds


def main(system: str, folder: str, dtype: str) -> None:
    """Serve one of the two."""
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
    ).eval()
    serve(ForwardLoop(model) if system == "forward" else ContinuousBatching(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
