"""From the command line of `baton bench serve` to sessions and their arrivals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from bench.workloads import arrivals, dataset
from bench.workloads.dataset import Session
from bench.workloads.traces import Scaling, read_azure, read_mooncake, replay
from bench.workloads.vocabulary import TokenIds, Vocabulary, Words

_GENERATORS: Mapping[str, Callable[..., list[Session]]] = {
    "prefill-heavy": dataset.fixed_lengths,
    "decode-heavy": dataset.fixed_lengths,
    "random": dataset.random_lengths,
    "multi-turn": dataset.multi_turn,
    "shared-prefix": dataset.shared_prefix,
}


def make_sessions(options: argparse.Namespace) -> list[Session]:
    """Return the sessions that the options describe; the same for the same seed.

    Raises:
        ValueError: If the options contradict each other or the dataset's file.
    """
    name: str = options.dataset
    # The name is part of the seed: runs of two datasets against one server must not find each other's prompts cached.
    vocabulary, random = _vocabulary(options), Random(f"{options.seed}/{name}")
    if name in ("mooncake", "azure"):
        return _read(options, vocabulary)
    draw = partial(_GENERATORS[name], vocabulary, random, options.count)
    if name in ("prefill-heavy", "decode-heavy"):
        lengths = dataset.PREFILL_HEAVY_TOKENS if name == "prefill-heavy" else dataset.DECODE_HEAVY_TOKENS
        return draw(prompt_tokens=lengths[0], output_tokens=lengths[1])
    if name == "random":
        return draw(prompt_tokens=options.prompt_tokens, output_tokens=options.output_tokens)
    prompt_tokens, draw = options.prompt_tokens[0], partial(draw, output_tokens=options.output_tokens[0])
    if name == "multi-turn":
        return draw(num_turns=options.turns, prompt_tokens=prompt_tokens)
    return draw(num_prefixes=options.prefixes, prefix_tokens=options.prefix_tokens, suffix_tokens=prompt_tokens)


def make_warm_up(options: argparse.Namespace, sessions: Sequence[Session]) -> list[Session]:
    """Return sessions as long as the first of a run, with prompts that are in no run: none of its own is cached."""
    vocabulary, turn = _vocabulary(options), sessions[0].turns[0]
    num_tokens = len(turn.prompt.split()) if isinstance(turn.prompt, str) else len(turn.prompt)
    return dataset.fixed_lengths(
        vocabulary,
        Random(f"{options.seed}/warm-up"),
        options.warmup,
        prompt_tokens=max(1, num_tokens),
        output_tokens=turn.max_tokens,
    )


def make_arrivals(options: argparse.Namespace, sessions: Sequence[Session]) -> list[float]:
    """Return when each session begins, seconds.

    Raises:
        ValueError: If a trace is to be replayed and the dataset has no times.
    """
    random, count = Random(f"{options.seed}/arrivals"), len(sessions)
    match options.arrivals:
        case "poisson":
            return arrivals.poisson(count, options.rate, random)
        case "trace":
            seconds = [session.arrival_seconds for session in sessions if session.arrival_seconds is not None]
            if len(seconds) < count:
                raise ValueError(f"the dataset {options.dataset} has no arrival times to replay")
            return arrivals.replayed(seconds, options.speed)
        case _:
            return arrivals.all_at_once(count)


def _read(options: argparse.Namespace, vocabulary: Vocabulary) -> list[Session]:
    if options.path is None:
        raise ValueError(f"the dataset {options.dataset} needs --path")
    rows = read_mooncake(options.path) if options.dataset == "mooncake" else read_azure(options.path)
    scaling = Scaling(options.length_factor, options.max_context_tokens)
    return replay(rows, vocabulary, options.seed, options.count, scaling)


def _vocabulary(options: argparse.Namespace) -> Vocabulary:
    if options.token_ids is None:
        return Words()
    if options.chat or options.dataset == "multi-turn":
        raise ValueError("--token-ids needs /v1/completions and a dataset whose sessions have one turn")
    return TokenIds(options.token_ids[0], options.token_ids[-1] + 1)
