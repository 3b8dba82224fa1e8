"""The hybrid demo model between real processes: what torch prefills and MLX decodes is what transformers says."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.demo import checkpoint_dir
from demo.dialogues import Exercise, Task, arithmetic, retrieval, reversal
from demo.evaluate import draw_facts
from system.cluster import Cluster
from system.rest import CHAT, CHAT_PATH, ask

FOLDER = checkpoint_dir("baton-demo-hybrid")
NUM_STATE_BYTES = 6 * 4 * 64 * 64 * 4
"""Of six layers' recurrent states, in float32."""


def test_its_answers_over_two_engines_are_those_of_transformers() -> None:
    """Sums, differences, products, words and facts, asked at once, are right; facts asked again are cached."""
    pytest.importorskip("mlx_lm")
    exercises = _exercises()
    questions = [exercise.question for exercise in exercises]
    settings = {"router": {"prefill_policy": "remote"}}
    with Cluster(FOLDER, prefill=("torch",), decode=("mlx",), settings=settings) as cluster:
        with ThreadPoolExecutor(4) as threads:
            replies = list(threads.map(lambda question: _answer(cluster, question), questions))
        again = _answer(cluster, questions[-1])

    answers = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert answers == _of_transformers(questions) == [exercise.answer for exercise in exercises]
    placed = {(reply["baton"]["prefill_node"], reply["baton"]["decode_node"]) for reply in replies}
    assert placed == {("prefill-0", "decode-0")}
    assert all(reply["baton"]["kv_bytes"] > NUM_STATE_BYTES for reply in replies)
    assert again["choices"] == replies[-1]["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 500


def _exercises() -> Sequence[Exercise]:
    rng = random.Random(5)
    facts = draw_facts(rng, 600)
    asked = retrieval(rng, rng.choice(facts))
    lines = "".join(f"{each}\n" for each in facts)
    long = Exercise(asked.task, f"Facts:\n{lines}\n{asked.question}", asked.answer)
    return *(arithmetic(rng, task) for task in (Task.ADD, Task.SUBTRACT, Task.MULTIPLY)), reversal(rng), long


def _answer(cluster: Cluster, question: str) -> Any:
    body = {**CHAT, "messages": [{"role": "user", "content": question}], "max_tokens": 32}
    reply = ask(cluster, CHAT_PATH, json.dumps(body).encode())
    assert reply.status == 200, reply.body
    return reply.body


def _of_transformers(questions: Sequence[str]) -> Sequence[str]:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    told = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    answers = []
    for question in questions:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], **told)
        output = model.generate(**prompt, max_new_tokens=32, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(output, skip_special_tokens=True))
    return answers
