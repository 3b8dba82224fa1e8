"""Measures a demo model on held-out exercises, per task and by context length.

`PYTHONPATH=tests python -m demo.evaluate [--model DIR] [--save]` prints a table, then the same figures as JSON.

An answer counts only if it is right to the last character and ends there. Each is judged by one forward pass over
question and right answer: greedy decoding gives the answer if and only if each of its tokens is the most likely there.
"""

import argparse
import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from baton.demo import checkpoint_dir
from demo.dialogues import Exercise, Fact, Task, arithmetic, fact, retrieval, reversal, small_talk
from demo.vocabulary import END_ID, PAD_ID, encode_text, role_id

CONTEXT_LENGTHS = (128, 256, 512, 1024, 2048, 4096)
"""Tokens of the needle tests' prompts, answer included."""
REPORT_FILE = "accuracy.json"
"""In a checkpoint's folder: the measured accuracies, a list of objects with the fields of `Accuracy`."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many exercises of one kind were answered exactly."""

    name: str
    num_right: int
    num_asked: int

    @property
    def share(self) -> float:
        """Return the share answered exactly, 0 to 1."""
        return self.num_right / self.num_asked


@dataclass(slots=True)
class DialogueRow:
    """A conversation as tokens. Invariant: `tokens` and `is_target` have one entry per position."""

    tokens: list[int] = field(default_factory=list)
    is_target: list[bool] = field(default_factory=list)
    """Whether the token at this position is one that the assistant says."""

    def add(self, role: str, content: str) -> None:
        """Append a message in the chat template's form."""
        body = [*encode_text(content), END_ID]
        self.tokens += [role_id(role), *body]
        self.is_target += [False, *([role == "assistant"] * len(body))]


def evaluate(
    model: PreTrainedModel, *, num_short: int = 1000, num_needles: int = 100, max_context: int = 4096, seed: int = 1
) -> list[Accuracy]:
    """Return the accuracy of every task, then of the needle test at each context length.

    Args:
        model: The model to measure, in the dtype to measure it in.
        num_short: Exercises per task that needs no context.
        num_needles: Exercises per context length.
        max_context: Longest context to test, in tokens.
        seed: Seed of the exercises.
    """
    rng = random.Random(seed)
    results = [
        measure(model, task.value, short_rows(rng, task, num_short)) for task in Task if task is not Task.RETRIEVE
    ]
    for length in CONTEXT_LENGTHS:
        if length <= max_context:
            rows = [needle_row(rng, length) for _ in range(num_needles)]
            results.append(measure(model, f"{Task.RETRIEVE.value}@{length}", rows))
    return results


def short_rows(rng: random.Random, task: Task, num_rows: int) -> list[DialogueRow]:
    """Return single-turn conversations with held-out exercises of a task; small talk has only what was learned."""
    return [_conversation("", _held_out(rng, task)) for _ in range(num_rows)]


def needle_row(rng: random.Random, num_tokens: int) -> DialogueRow:
    """Return a conversation of about this many tokens, at most: held-out facts, and the question for one of them."""
    facts = draw_facts(rng, num_tokens - 80)
    lines = "".join(f"{each}\n" for each in facts)
    return _conversation(f"Facts:\n{lines}\n", retrieval(rng, rng.choice(facts)))


def draw_facts(rng: random.Random, num_bytes: int) -> list[Fact]:
    """Return facts with distinct keys that take about this many bytes when written one per line, at least one."""
    facts: dict[str, Fact] = {}
    used_bytes = 0
    while used_bytes < num_bytes or not facts:
        drawn = fact(rng)
        if drawn.key not in facts:
            facts[drawn.key] = drawn
            used_bytes += len(str(drawn)) + 1
    return list(facts.values())


def measure(model: PreTrainedModel, name: str, rows: list[DialogueRow], *, batch_tokens: int = 8192) -> Accuracy:
    """Return how many of the rows' answers the model gives exactly, in batches of about `batch_tokens`."""
    batch_size = max(1, batch_tokens // max(len(row.tokens) for row in rows))
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return Accuracy(name, sum(_count_right(model, batch) for batch in batches), len(rows))


def as_table(results: list[Accuracy]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| task | exact answers | of | accuracy |", "|---|---|---|---|"]
    lines += [f"| {one.name} | {one.num_right} | {one.num_asked} | {100 * one.share:.1f} % |" for one in results]
    return "\n".join(lines)


def main() -> None:
    """Measure the checkpoint that the command line names."""
    parser = argparse.ArgumentParser(description="Measure the demo model on held-out exercises.")
    parser.add_argument(
        "--model", type=Path, default=checkpoint_dir(), help="Hugging Face folder (default: the demo checkpoint)"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype to compute in")
    parser.add_argument("--num-short", type=int, default=1000, help="exercises per task that needs no context")
    parser.add_argument("--num-needles", type=int, default=100, help="exercises per context length")
    parser.add_argument("--seed", type=int, default=1, help="seed of the exercises")
    parser.add_argument("--save", action="store_true", help=f"also write the figures to {REPORT_FILE} in the folder")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()
    results = evaluate(model, num_short=options.num_short, num_needles=options.num_needles, seed=options.seed)
    print(as_table(results))
    report = json.dumps([asdict(one) for one in results])
    print(report)
    if options.save:
        (options.model / REPORT_FILE).write_text(report.replace("}, ", "},\n ") + "\n")


def _held_out(rng: random.Random, task: Task) -> Exercise:
    """Return a held-out exercise of a task that needs no context."""
    if task is Task.SMALL_TALK:
        return small_talk(rng)
    return reversal(rng) if task is Task.REVERSE else arithmetic(rng, task)


def _conversation(preamble: str, exercise: Exercise) -> DialogueRow:
    """Return one question and its answer, without padding."""
    row = DialogueRow()
    row.add("user", preamble + exercise.question)
    row.add("assistant", exercise.answer)
    return row


def _count_right(model: PreTrainedModel, rows: list[DialogueRow]) -> int:
    """Return how many rows have every answer token predicted; rows are padded at the end, where nothing looks."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.full((len(rows), longest), PAD_ID)
    is_target = torch.zeros((len(rows), longest), dtype=torch.bool)
    for row_index, row in enumerate(rows):
        tokens[row_index, : len(row.tokens)] = torch.tensor(row.tokens)
        is_target[row_index, : len(row.tokens)] = torch.tensor(row.is_target)
    with torch.no_grad():
        predicted = model(tokens[:, :-1], use_cache=False).logits.argmax(-1)
    is_right = (predicted == tokens[:, 1:]) | ~is_target[:, 1:]
    return int(is_right.all(dim=1).sum())


if __name__ == "__main__":
    main()
