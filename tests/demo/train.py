"""Trains the hybrid demo model on one GPU by wall time.

`PYTHONPATH=tests python -m demo.train --seconds 120 --out DIR [--from FILE]`

Rows are written by worker processes; a step (forward, backward, update) is one CUDA graph per row length, of as many
tokens whatever the length. Contexts grow from short to long. Matrices are updated by Muon (arXiv:2502.16982), all else
by Adam. `model.safetensors` holds the weights in bfloat16, `log.json` what happened.
"""

import argparse
import json
import math
import multiprocessing
import random
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from demo.exercises import DataSplit, Exercise, Task, arithmetic, retrieval, reversal, small_talk, split_of
from demo.model import CHUNK, CONFIG, EMBEDDING, MATRICES, NUM_TOKENS, Weights, forward
from demo.rows import DialogueRow, as_lines, draw_facts, training_row
from demo.vocabulary import PAD_ID

TARGET_BIT = 1 << 15
"""Set in a row's token where the assistant speaks."""
MAX_POSITIONS = CONFIG["max_position_embeddings"]
LENGTHS = (128, 256, 512, 1024, 2048)
CURRICULUM: tuple[tuple[float, dict[int, float]], ...] = (
    (0.12, {128: 0.8, 256: 0.2}),
    (0.30, {128: 0.45, 256: 0.45, 512: 0.1}),
    (0.60, {128: 0.35, 256: 0.35, 512: 0.25, 1024: 0.05}),
    (0.85, {128: 0.3, 256: 0.3, 512: 0.2, 1024: 0.15, 2048: 0.05}),
    (1.01, {128: 0.3, 256: 0.25, 512: 0.2, 1024: 0.15, 2048: 0.1}),
)
"""Up to which share of the run, how often batches of which row length are drawn."""
QUEUED_BATCHES = 24
"""At about how many finished batches of a row length the workers wait."""
LONG_ROW_TOKENS = 1024
"""From this length on most rows are about facts: short exercises are learned more cheaply in short rows."""


def write_rows(seed: int, step_tokens: int, queues: dict[int, Any], is_over: Any) -> None:
    """Fill the queues with batches, [num_rows, num_tokens], uint16, until the run is over: the emptiest first."""
    rng = random.Random(seed)
    while not is_over.is_set():
        num_tokens = min(queues, key=lambda length: queues[length].qsize() + rng.random())
        if queues[num_tokens].qsize() >= QUEUED_BATCHES:
            time.sleep(0.002)
            continue
        share = 0.85 if num_tokens >= LONG_ROW_TOKENS else 0.4
        rows = [training_row(rng, num_tokens, retrieval_share=share) for _ in range(step_tokens // num_tokens)]
        batch = np.array([row.tokens for row in rows], np.uint16)
        batch |= np.array([row.is_target for row in rows], np.uint16) * TARGET_BIT
        queues[num_tokens].put(batch)
    for each in queues.values():
        each.cancel_join_thread()


class Optimizer:
    """Updates flat weights in place: Muon for matrices of layers, Adam for embedding and vectors."""

    def __init__(self, weights: Weights, weight_decay: float, *, is_muon: bool) -> None:
        self.weights, self.weight_decay, self.is_muon = weights, weight_decay, is_muon
        device = weights.matrices.device
        self.rate = torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)
        flats = (weights.matrices, weights.vectors)
        self.firsts, self.seconds = ([torch.zeros_like(flat) for flat in flats] for _ in range(2))
        self.groups: list[tuple[int, int, int, int, int]] = []
        at = 0
        for name, (rows, columns) in MATRICES.items():
            if min(rows, columns) >= 64 and name != EMBEDDING and is_muon:
                last = self.groups[-1] if self.groups else (0, 0, 0, 0, 0)
                if last[3:] == (rows, columns) and last[1] == at:
                    self.groups[-1] = (last[0], at + rows * columns, last[2] + 1, rows, columns)
                else:
                    self.groups.append((at, at + rows * columns, 1, rows, columns))
            at += rows * columns

    @torch.no_grad()
    def update(self, gradients: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Take one step; `rate` holds the learning rate."""
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        self.count += 1
        flats = (self.weights.matrices, self.weights.vectors)
        for gradient, flat, first, second in zip(gradients, flats, self.firsts, self.seconds, strict=True):
            scaled = gradient * scale
            first.lerp_(scaled, 0.1)
            second.lerp_(scaled.square(), 0.02)
            change = (first / (1 - 0.9**self.count)) / ((second / (1 - 0.98**self.count)).sqrt() + 1e-8)
            if flat is self.weights.matrices:
                self._orthogonalise(change, first, scaled)
                flat.mul_(1 - self.rate * self.weight_decay)
            flat.sub_(change * self.rate)

    def _orthogonalise(self, change: torch.Tensor, first: torch.Tensor, scaled: torch.Tensor) -> None:
        """Replace the change of whole matrices by their momentum's nearest orthogonal matrix, of Adam's usual size."""
        momentum = torch.lerp(scaled, first, 0.9)
        families: dict[tuple[int, int], list[tuple[torch.Tensor, int, int, bool]]] = {}
        for start, end, count, rows, columns in self.groups:
            stack, is_tall = momentum[start:end].view(count, rows, columns), rows > columns
            shape = (min(rows, columns), max(rows, columns))
            families.setdefault(shape, []).append((stack.mT if is_tall else stack, start, end, is_tall))
        for shape, members in families.items():
            stack = torch.cat([member[0] for member in members])
            stack = stack.to(torch.bfloat16) if stack.is_cuda else stack
            stack = stack / (stack.norm(dim=(1, 2), keepdim=True) * 1.02 + 1e-7)
            for _ in range(5):
                square = stack @ stack.mT
                mixed = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
                stack = torch.baddbmm(stack, mixed, stack, beta=3.4445)
            parts = stack.float().mul_(0.2 * shape[1] ** 0.5).split([len(member[0]) for member in members])
            for part, (_, start, end, is_tall) in zip(parts, members, strict=True):
                change[start:end].copy_((part.mT if is_tall else part).reshape(-1))


class Step:
    """One training step for a row length, as a CUDA graph; on a CPU as it is."""

    def __init__(self, training: "Training", num_tokens: int, step_tokens: int, pool: Any) -> None:
        self.training = training
        shape, device = (step_tokens // num_tokens, num_tokens), training.device
        self.packed = torch.zeros(shape, dtype=torch.int32, device=device)
        self.jumps = torch.zeros((shape[0], 2, 1), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.graph = None
        if device == "cuda":
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool):
                    self._take()
                self.graph = graph
            except RuntimeError:
                traceback.print_exc()
                print(f"rows of {num_tokens} tokens go without a graph", flush=True)

    def take(self, batch: np.ndarray, jumps: np.ndarray) -> torch.Tensor:
        """Train on a batch and return its loss, which later steps overwrite."""
        packed, jumping = torch.from_numpy(batch.astype(np.int32)), torch.from_numpy(jumps)
        if self.graph is None:
            self.packed.copy_(packed)
            self.jumps.copy_(jumping)
            self._take()
        else:
            self.packed.copy_(packed.pin_memory(), non_blocking=True)
            self.jumps.copy_(jumping.pin_memory(), non_blocking=True)
            self.graph.replay()
        return self.loss

    def _take(self) -> None:
        training = self.training
        with torch.enable_grad():
            loss = training.loss(self.packed, self.jumps)
            gradients = torch.autograd.grad(loss, (training.weights.matrices, training.weights.vectors))
        training.optimizer.update(gradients)
        self.loss.copy_(loss.detach())


class Training:
    """Owns the weights, the optimizer, and a step per row length."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options, self.device = options, options.device
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.weights = Weights.new(self.device)
        if options.start:
            self.weights.load({name: each.to(self.device) for name, each in load_file(options.start).items()})
        for flat in (self.weights.matrices, self.weights.vectors):
            flat.requires_grad_(True)
        self.optimizer = Optimizer(self.weights, 0.05, is_muon=options.optimizer == "muon")
        self.steps: dict[int, Step] = {}
        if self.device == "cuda":
            self._warm_up()
        pool = torch.cuda.graph_pool_handle() if self.device == "cuda" else None
        for length in options.lengths:
            self.steps[length] = Step(self, length, options.step_tokens, pool)

    def loss(self, packed: torch.Tensor, jumps: torch.Tensor) -> torch.Tensor:
        """Return the loss in nats per learned token."""
        tokens = (packed & (TARGET_BIT - 1)).long()
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        positions = places + jumps[:, 1] * (places >= jumps[:, 0])
        logits = forward(self.weights, tokens, positions, self.dtype).view(*tokens.shape, NUM_TOKENS)
        is_learned = ((packed & TARGET_BIT) != 0)[:, 1:].float()
        losses = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return (losses * is_learned.flatten()).sum() / is_learned.sum().clamp(min=1.0)

    def save(self, folder: Path) -> None:
        """Write the weights, rounded to bfloat16."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: part.detach().to(torch.bfloat16).cpu().contiguous() for name, part in self.weights.named().items()
        }
        save_file(tensors, folder / "partial", metadata={"format": "pt"})
        (folder / "partial").replace(folder / "model.safetensors")

    def _warm_up(self) -> None:
        """Run every kernel once outside a graph; the rate is 0, and the optimizer starts anew."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for length in self.options.lengths:
                num_rows = self.options.step_tokens // length
                packed = torch.zeros((num_rows, length), dtype=torch.int32, device=self.device)
                jumps = torch.zeros((num_rows, 2, 1), dtype=torch.int64, device=self.device)
                loss = self.loss(packed, jumps)
                gradients = torch.autograd.grad(loss, (self.weights.matrices, self.weights.vectors))
                self.optimizer.update(gradients)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        for state in (*self.optimizer.firsts, *self.optimizer.seconds, self.optimizer.count):
            state.zero_()


def draw_jumps(rng: np.random.Generator, num_rows: int, num_tokens: int) -> np.ndarray:
    """Return where positions of each row jump, and by how much; half of the rows do not (PoSE, arXiv:2309.10400)."""
    cuts = rng.integers(0, num_tokens, num_rows)
    jumps = rng.integers(0, MAX_POSITIONS - num_tokens, num_rows) * (rng.random(num_rows) < 0.5)
    return np.stack([cuts, jumps], 1)[:, :, None].astype(np.int64)


def learning_rate(step: int, progress: float, peak: float) -> float:
    """Return the rate: a rise over the first steps, the peak until a third of the run, then down to nearly 0."""
    falling = max(0.0, min(1.0, (progress - 0.3) / 0.7))
    return peak * min(1.0, (step + 1) / 150) * (0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * falling)))


@torch.no_grad()
def measure(training: Training, rows: list[DialogueRow], batch_tokens: int = 16384) -> int:
    """Return how many rows' answers are exactly what greedy decoding gives: each token the most likely there."""
    right = 0
    longest = -(-max(len(row.tokens) for row in rows) // CHUNK) * CHUNK
    size = max(1, batch_tokens // longest)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        tokens = torch.full((len(part), longest), PAD_ID)
        is_target = torch.zeros((len(part), longest), dtype=torch.bool)
        for index, row in enumerate(part):
            tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
            is_target[index, : len(row.tokens)] = torch.tensor(row.is_target)
        tokens, is_target = tokens.to(training.device), is_target.to(training.device)
        places = torch.arange(longest, device=training.device).expand(tokens.shape)
        logits = forward(training.weights, tokens, places, training.dtype).view(*tokens.shape, NUM_TOKENS)
        is_right = (logits[:, :-1].argmax(-1) == tokens[:, 1:]) | ~is_target[:, 1:]
        right += int(is_right.all(1).sum())
    return right


def evaluate(training: Training, num_short: int, num_needles: int, contexts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return how many held-out exercises of every kind are answered exactly."""
    rng, results = random.Random(1), []
    for task in Task:
        if task is not Task.RETRIEVE:
            rows = [conversation("", held_out(rng, task)) for _ in range(num_short)]
            results.append({"name": task.value, "num_right": measure(training, rows), "num_asked": num_short})
    small = [
        conversation("", Exercise(Task.ADD, f"What is {left} + {right}?", f"{left} + {right} = {left + right}"))
        for left, right in two_digit_pairs(rng, num_short)
    ]
    results.append({"name": "two_digit_sums", "num_right": measure(training, small), "num_asked": num_short})
    for length in contexts:
        rows = []
        for _ in range(num_needles):
            facts = draw_facts(rng, DataSplit.HELD_OUT, length - 80)
            rows.append(conversation(f"Facts:\n{as_lines(facts)}\n", retrieval(rng, rng.choice(facts))))
        results.append({"name": f"retrieve@{length}", "num_right": measure(training, rows), "num_asked": num_needles})
    return results


def two_digit_pairs(rng: random.Random, num_pairs: int) -> list[tuple[int, int]]:
    """Return pairs of numbers of two digits whose sum was held out."""
    pairs: list[tuple[int, int]] = []
    while len(pairs) < num_pairs:
        low, high = sorted((rng.randint(10, 99), rng.randint(10, 99)))
        if split_of(f"{Task.ADD} {low} {high}") is DataSplit.HELD_OUT:
            pairs.append((low, high) if rng.random() < 0.5 else (high, low))
    return pairs


def held_out(rng: random.Random, task: Task) -> Exercise:
    """Return a held-out exercise of a task that needs no context; small talk has only what is learned."""
    if task is Task.SMALL_TALK:
        return small_talk(rng)
    split = DataSplit.HELD_OUT
    return reversal(rng, split) if task is Task.REVERSE else arithmetic(rng, split, task)


def conversation(preamble: str, exercise: Exercise) -> DialogueRow:
    """Return one question and its answer, without padding."""
    row = DialogueRow(num_tokens=0)
    row.add("user", preamble + exercise.question)
    row.add("assistant", exercise.answer)
    return row


def train(training: Training, queues: dict[int, Any], log: dict[str, Any], folder: Path) -> None:
    """Take steps until the time is used up; write weights and log on the way."""
    options = training.options
    rng, chooser = np.random.default_rng(options.seed), random.Random(options.seed)
    began = reported = saved = time.monotonic()
    total, waited, step = None, 0.0, 0
    reported_step, counts = 0, dict.fromkeys(options.lengths, 0)
    while (progress := (time.monotonic() - began) / options.seconds) < 1.0 and step < options.max_steps:
        weights = next(weights for until, weights in CURRICULUM if progress <= until)
        lengths = {length: weight for length, weight in weights.items() if length in options.lengths}
        (length,) = chooser.choices(tuple(lengths), weights=tuple(lengths.values()))
        asked = time.monotonic()
        batch = queues[length].get(timeout=60)
        waited += time.monotonic() - asked
        training.optimizer.rate.fill_(learning_rate(step, progress, options.peak))
        loss = training.steps[length].take(batch, draw_jumps(rng, *batch.shape))
        total = loss.clone() if total is None else total + loss
        step, counts[length] = step + 1, counts[length] + 1
        if step % 8 == 0 and training.device == "cuda":
            torch.cuda.current_stream().synchronize()
        now = time.monotonic()
        if now - reported > options.report_seconds:
            done = step - reported_step
            line = {
                "seconds": round(now - began, 1),
                "step": step,
                "loss": round(float(total) / done, 4),
                "steps_per_second": round(done / (now - reported), 1),
                "waited_for_rows": round(waited, 2),
                "counts": dict(counts),
            }
            print(json.dumps(line), flush=True)
            log["progress"].append(line)
            total, waited, reported, reported_step = None, 0.0, now, step
        if now - saved > 30:
            log["accuracy"] = evaluate(training, 200, 32, (128, 512))
            print(
                " ".join(f"{one['name']} {one['num_right']}/{one['num_asked']}" for one in log["accuracy"]), flush=True
            )
            training.save(folder)
            (folder / "log.json").write_text(json.dumps(log))
            saved = time.monotonic()
    log |= {"num_steps": step, "num_tokens": step * options.step_tokens}


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train the hybrid demo model.")
    parser.add_argument("--seconds", type=float, default=120.0, help="training time, without start and measuring")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and log")
    parser.add_argument("--from", dest="start", default="", help="weights to go on from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--optimizer", choices=("muon", "adam"), default="muon")
    parser.add_argument("--step-tokens", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    parser.add_argument("--num-short", type=int, default=1000)
    parser.add_argument("--num-needles", type=int, default=60)
    parser.add_argument("--report-seconds", type=float, default=5.0)
    return parser.parse_args()


def main() -> None:
    """Train as the command line says."""
    started, options = time.monotonic(), read_options()
    context = multiprocessing.get_context("fork")  # before CUDA starts: workers need none of it
    is_over = context.Event()
    queues = {length: context.Queue() for length in options.lengths}
    processes = [
        context.Process(
            target=write_rows, args=(1000 * options.seed + n, options.step_tokens, queues, is_over), daemon=True
        )
        for n in range(options.workers)
    ]
    for process in processes:
        process.start()
    torch.backends.cuda.matmul.allow_tf32 = True
    training = Training(options)
    print(f"ready after {time.monotonic() - started:.1f} s on {options.device}", flush=True)
    log: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}, "progress": []}
    train(training, queues, log, options.out)
    is_over.set()
    training.save(options.out)
    log["accuracy"] = evaluate(training, options.num_short, options.num_needles, (128, 256, 512, 1024, 2048, 4096))
    log["seconds_in_all"] = round(time.monotonic() - started, 1)
    (options.out / "log.json").write_text(json.dumps(log))
    for one in log["accuracy"]:
        print(f"{one['name']}: {one['num_right']} of {one['num_asked']}", flush=True)
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main()
