"""lm-eval: log-likelihoods and choices must be those of transformers, which the repository's own environment has.

The task is made here, of sums with three choices each. With the demo model an end of text follows most prompts: it
counts as generated, and is no token of a choice.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from features import MODEL, MODEL_DIR, URL, expect, run

NUM_QUESTIONS = 30
TOLERANCE = 1e-3
"""Nats, of a log-likelihood: both sides compute in float32 and add in another order."""
_ROOT = Path(__file__).parents[3]
FOLDER = Path(MODEL_DIR or _ROOT / "services/baton/demo/checkpoint")
_REFERENCE = "--reference"


def questions() -> list[dict[str, Any]]:
    """Return sums with three choices; the right one is the first, second and third equally often."""
    draw, rows = random.Random(17), []
    for index in range(NUM_QUESTIONS):
        left, right = draw.randint(10, 60), draw.randint(10, 39)
        wrong = [left + right + 1, left + right - 10]
        choices = [f" {left} + {right} = {total}" for total in wrong]
        choices.insert(index % 3, f" {left} + {right} = {left + right}")
        rows.append({"question": f"What is {left} + {right}?", "choices": choices, "answer": index % 3})
    return rows


def evaluate(folder: Path) -> dict[str, Any]:
    """Return what lm-eval makes of the questions by the completions endpoint."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = folder / "sums.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in questions()))
    task = {
        "task": "baton_sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    arguments = {
        "model": MODEL,
        "base_url": f"{URL}/v1/completions",
        "tokenizer": str(FOLDER),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 4,
    }
    return simple_evaluate(  # type: ignore[no-any-return]
        model="local-completions",
        model_args=arguments,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )


def reference() -> list[list[float]]:
    """Return the log-likelihood of every choice by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    network = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()

    def loglikelihood(question: str, choice: str) -> float:
        prompt = tokenizer(question)["input_ids"]
        token_ids = tokenizer(question + choice)["input_ids"]
        with torch.inference_mode():
            logprobs = network(torch.tensor([token_ids])).logits[0].float().log_softmax(-1)
        return sum(float(logprobs[index - 1, token_ids[index]]) for index in range(len(prompt), len(token_ids)))

    return [[loglikelihood(row["question"], choice) for choice in row["choices"]] for row in questions()]


def choices() -> str:
    """Compare every log-likelihood, every choice and the accuracy."""
    command = (str(_ROOT / ".venv/bin/python"), __file__, _REFERENCE)
    expected = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        outcome = evaluate(Path(folder))
    samples = sorted(outcome["samples"]["baton_sums"], key=lambda sample: sample["doc_id"])
    found = [[float(each[0]) for each in sample["filtered_resps"]] for sample in samples]
    pairs = [pair for ours, theirs in zip(found, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    num_other = sum(abs(ours - theirs) > TOLERANCE for ours, theirs in pairs)
    chosen, right = ([each.index(max(each)) for each in scores] for scores in (found, expected))
    accuracy = sum(ours == row["answer"] for ours, row in zip(right, questions(), strict=True)) / NUM_QUESTIONS
    worst = max(abs(ours - theirs) for ours, theirs in pairs)
    expect((num_other, len(pairs)), (0, 3 * NUM_QUESTIONS), f"log-likelihoods that differ, by {worst:.1e} at worst")
    expect(chosen, right, "choices")
    expect(round(outcome["results"]["baton_sums"]["acc,none"], 6), round(accuracy, 6), "accuracy")
    return f"{len(pairs)} log-likelihoods within {worst:.0e}, accuracy {accuracy:.3f}, as transformers has them"


if __name__ == "__main__":
    if sys.argv[1:] == [_REFERENCE]:
        print(json.dumps(reference()))
    else:
        run({"choices": choices})
