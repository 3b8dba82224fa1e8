"""Trains the demo model from nothing: `python -m baton.demo.train --out DIR --minutes M --seed S`.

The data is written as it is needed, so nothing is seen twice. Contexts grow from short to long: copying by content
appears first where there is little to confuse, and then stretches. A run that was stopped goes on from its last save.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from baton.demo.evaluate import evaluate
from baton.demo.export import export
from baton.demo.model import MAX_POSITIONS, new_model
from baton.demo.rows import training_row

STEP_TOKENS = 4096
"""Tokens of every optimizer step, whatever the length of its rows."""
PEAK_LEARNING_RATE = 1.5e-3
WARMUP_STEPS = 200
SAVE_EVERY_SECONDS = 240.0
REPORT_EVERY_STEPS = 100
NOT_LEARNED = -100
RECORD_FILE = "training.json"
"""In the finished folder: the command, and how far it got on the machine that ran it."""

CURRICULUM: tuple[tuple[float, dict[int, float]], ...] = (
    (0.08, {128: 1.0}),
    (0.23, {128: 0.4, 256: 0.6}),
    (0.45, {128: 0.3, 256: 0.2, 512: 0.5}),
    (0.75, {128: 0.3, 256: 0.15, 512: 0.2, 1024: 0.35}),
    (1.00, {128: 0.3, 256: 0.1, 512: 0.15, 1024: 0.2, 2048: 0.25}),
)
"""Up to which share of the run, how often rows of which length are drawn."""
LONG_ROW_TOKENS = 1024
"""From this length on most rows are about facts: short exercises are learned more cheaply in short rows."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows as tensors, each [num_rows, num_tokens], int64."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """The token itself where the assistant speaks, else `NOT_LEARNED`."""
    positions: torch.Tensor


def new_batch(rng: random.Random, progress: float) -> TrainingBatch:
    """Return a batch of `STEP_TOKENS` tokens whose row length suits this share of the run."""
    lengths = next(lengths for until, lengths in CURRICULUM if progress <= until)
    (num_tokens,) = rng.choices(tuple(lengths), weights=tuple(lengths.values()))
    share = 0.85 if num_tokens >= LONG_ROW_TOKENS else 0.4
    rows = [training_row(rng, num_tokens, retrieval_share=share) for _ in range(STEP_TOKENS // num_tokens)]
    tokens = torch.tensor([row.tokens for row in rows])
    is_target = torch.tensor([row.is_target for row in rows])
    positions = torch.tensor([draw_positions(rng, num_tokens) for _ in rows])
    return TrainingBatch(tokens, tokens.masked_fill(~is_target, NOT_LEARNED), positions)


def draw_positions(rng: random.Random, num_tokens: int) -> list[int]:
    """Return increasing positions below `MAX_POSITIONS`, in half of the cases with one jump.

    A jump sets a short row's question as far from its facts as in a long one, at a short row's price.
    Source: PoSE, arXiv:2309.10400, section 3.
    """
    if rng.random() < 0.5:
        return list(range(num_tokens))
    cut = rng.randrange(num_tokens)
    jump = rng.randint(0, MAX_POSITIONS - num_tokens)
    return [*range(cut), *range(cut + jump, num_tokens + jump)]


def learning_rate(step: int, progress: float) -> float:
    """Return the rate: a linear rise over the first steps, then half a cosine down to a hundredth of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (0.01 + 0.99 * cosine)


class Training:
    """Owns the model, its optimizer and the run's clock.

    Invariant: `elapsed_seconds` counts training only, over all starts of the run, so the schedule survives a restart.
    """

    def __init__(self, minutes: float, seed: int, state_file: Path, *, is_compiled: bool = True) -> None:
        torch.manual_seed(seed)
        self.total_seconds = minutes * 60
        self.state_file = state_file
        self.rng = random.Random(seed)
        self.step = 0
        self.elapsed_seconds = 0.0
        self.model = new_model()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05, fused=True
        )
        self._forward: Callable[..., torch.Tensor] = (
            torch.compile(self._loss, dynamic=False) if is_compiled else self._loss
        )

    @property
    def progress(self) -> float:
        """Return the share of the run that is done, 0 to 1."""
        return min(1.0, self.elapsed_seconds / self.total_seconds)

    def take_step(self) -> float:
        """Train on one batch and return its loss, in nats per learned token."""
        started = time.monotonic()
        batch = new_batch(self.rng, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.progress)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self._forward(batch.tokens, batch.labels, batch.positions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.elapsed_seconds += time.monotonic() - started
        return float(loss.detach())

    def save(self) -> None:
        """Write everything that a restart needs; a crash while writing leaves the save before it."""
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.state_file.with_suffix(".partial")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng.getstate(),
            "step": self.step,
            "elapsed_seconds": self.elapsed_seconds,
        }
        torch.save(state, partial)
        partial.replace(self.state_file)

    def resume(self) -> bool:
        """Go on from the last save, if there is one, and return whether there was."""
        if not self.state_file.exists():
            return False
        state = torch.load(self.state_file, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.setstate(state["rng"])
        self.step, self.elapsed_seconds = state["step"], state["elapsed_seconds"]
        return True

    def _loss(self, tokens: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = self.model(tokens, position_ids=positions, use_cache=False).logits
        return functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=NOT_LEARNED
        )


def train(training: Training, out: Path) -> None:
    """Run until the time is used up, saving, reporting and exporting on the way."""
    saved_at, losses = training.elapsed_seconds, []
    while training.progress < 1.0:
        losses.append(training.take_step())
        if training.step % REPORT_EVERY_STEPS == 0:
            mean_loss = sum(losses) / len(losses)
            print(f"{100 * training.progress:5.1f} %  step {training.step}  loss {mean_loss:.4f}", flush=True)
            losses.clear()
        if training.elapsed_seconds - saved_at > SAVE_EVERY_SECONDS:
            saved_at = training.elapsed_seconds
            publish(training, out)
    publish(training, out)


def publish(training: Training, out: Path) -> None:
    """Save the run, export the model as it stands, and print a quick accuracy on held-out exercises."""
    training.save()
    export(training.model, out)
    training.model.eval()
    results = evaluate(training.model, num_short=200, num_needles=32, max_context=1024)
    training.model.train()
    print("  ".join(f"{one.name} {100 * one.share:.0f} %" for one in results), flush=True)


def write_record(training: Training, folder: Path, command: str) -> None:
    """Write down beside the weights how they came about."""
    record = {"command": command, "num_steps": training.step, "num_tokens": training.step * STEP_TOKENS}
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished checkpoint")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time on this machine")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and data")
    parser.add_argument("--state", type=Path, help="where the run is saved for a restart (default: beside --out)")
    parser.add_argument("--eager", action="store_true", help="do not compile the model (no C++ compiler needed)")
    options = parser.parse_args()
    state_file = options.state or options.out.with_name(options.out.name + ".training") / "state.pt"
    training = Training(options.minutes, options.seed, state_file, is_compiled=not options.eager)
    if training.resume():
        print(f"resumed at step {training.step}", flush=True)
    train(training, options.out)
    command = f"python -m baton.demo.train --out DIR --minutes {options.minutes:g} --seed {options.seed}"
    write_record(training, options.out, command)


if __name__ == "__main__":
    main()
