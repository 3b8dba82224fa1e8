"""The command line of `baton bench serve`, and the sessions and arrivals that it describes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

from bench.options import at_least, json_object, positive
from bench.workloads import dataset
from bench.workloads.dataset import Session, TokenIds, Vocabulary, Words
from bench.workloads.traces import Scaling, poisson, read_azure, read_mooncake, replay, replayed

DATASETS = ("prefill-heavy", "decode-heavy", "random", "shared-prefix", "multi-turn", "mooncake", "azure")
ARRIVALS = ("at-once", "poisson", "trace")


def parser() -> argparse.ArgumentParser:
    """Return the parser; every option has a help text with its unit."""
    parser = argparse.ArgumentParser(
        prog="baton bench serve", description="Loads an OpenAI-compatible server and measures what its users get."
    )
    _add_server(parser.add_argument_group("server"))
    _add_dataset(parser.add_argument_group("what to ask"))
    _add_arrivals(parser.add_argument_group("when"))
    _add_results(parser.add_argument_group("results"))
    return parser


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (%(default)s)")
    group.add_argument("--model", help="model to ask; default: the first that the server has")
    group.add_argument("--chat", action="store_true", help="use /v1/chat/completions instead of /v1/completions")
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    group.add_argument(
        "--timeout", type=positive, default=600.0, help="longest time of one request, seconds (%(default)s)"
    )
    group.add_argument("--temperature", type=at_least(0.0), default=0.0)
    group.add_argument("--no-ignore-eos", action="store_true", help="let the model end before the asked length")
    group.add_argument("--extra-body", type=json_object, default="{}", help="further fields of every request, as JSON")


def _add_dataset(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset", choices=DATASETS, default="decode-heavy", help="(%(default)s)")
    group.add_argument("--path", type=Path, help="file of mooncake and azure")
    group.add_argument("--count", type=at_least(1), default=100, help="sessions (%(default)s)")
    group.add_argument("--seed", type=int, default=1, help="of lengths, contents and arrivals (%(default)s)")
    group.add_argument("--token-ids", metavar="LOW:HIGH", type=_range,
                       help="make prompts of these token ids (high excluded) instead of words")  # fmt: skip
    group.add_argument("--prompt-tokens", metavar="N or LOW:HIGH", type=_range, default=range(128, 1025),
                       help="random, multi-turn, and the own part of shared-prefix (128:1025)")  # fmt: skip
    group.add_argument("--output-tokens", metavar="N or LOW:HIGH", type=_range, default=range(16, 257),
                       help="random, multi-turn, shared-prefix (16:257)")  # fmt: skip
    group.add_argument(
        "--prefixes", type=at_least(1), default=8, help="shared-prefix: number of prefixes (%(default)s)"
    )
    group.add_argument(
        "--prefix-tokens", type=at_least(1), default=512, help="shared-prefix: their length (%(default)s)"
    )
    group.add_argument("--turns", type=at_least(1), default=4, help="multi-turn: turns of a session (%(default)s)")
    group.add_argument("--think", type=at_least(0.0), default=0.0, help="pause between turns, seconds (%(default)s)")
    group.add_argument(
        "--length-factor", type=positive, default=1.0, help="traces: factor on all lengths (%(default)s)"
    )
    group.add_argument("--max-context-tokens", type=at_least(1), help="traces: leave longer requests out")


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--arrivals", choices=ARRIVALS, default="at-once", help="(%(default)s)")
    group.add_argument("--rate", type=positive, default=10.0, help="poisson: sessions per second (%(default)s)")
    group.add_argument("--speed", type=positive, default=1.0, help="trace: times as fast as recorded (%(default)s)")
    group.add_argument("--max-in-flight", type=at_least(1), help="sessions at a time; default: no limit")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--label", help="name of the run; default: dataset and arrivals")
    group.add_argument("--out", type=Path, help="JSON to write")
    group.add_argument("--slo-ttft", type=positive, help="a good request's longest time to first token, seconds")
    group.add_argument("--slo-tpot", type=positive, help="a good request's longest time per output token, seconds")
    group.add_argument("--slo-e2e", type=positive, help="a good request's longest end-to-end latency, seconds")
    group.add_argument(
        "--warmup", type=at_least(0), default=1, help="requests before the run, not counted (%(default)s)"
    )


def _range(text: str) -> range:
    """Return [low, high) of `LOW:HIGH`, or one number."""
    low, _, high = text.partition(":")
    values = range(int(low), int(high) if high else int(low) + 1)
    if not values:
        raise argparse.ArgumentTypeError(f"{text} is empty")
    return values


_GENERATORS: Mapping[str, Callable[..., list[Session]]] = {
    "prefill-heavy": dataset.fixed_lengths,
    "decode-heavy": dataset.fixed_lengths,
    "random": dataset.random_lengths,
    "multi-turn": dataset.multi_turn,
    "shared-prefix": dataset.shared_prefix,
}


def make_sessions(options: argparse.Namespace) -> list[Session]:
    """Return the sessions of the options, the same for a seed; raise ValueError if options contradict each other."""
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
    """Return when each session begins, seconds; raise ValueError if a trace's times are wanted and there are none."""
    random, count = Random(f"{options.seed}/arrivals"), len(sessions)
    match options.arrivals:
        case "poisson":
            return poisson(count, options.rate, random)
        case "trace":
            seconds = [session.arrival_seconds for session in sessions if session.arrival_seconds is not None]
            if len(seconds) < count:
                raise ValueError(f"the dataset {options.dataset} has no arrival times to replay")
            return replayed(seconds, options.speed)
        case _:
            return [0.0] * count  # at once


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
