"""Prompt and generation rates by exo-bench's method, against any server with OpenAI's API.

Run as `baton bench pptg --url http://127.0.0.1:8000 --pp 512,4096 --tg 128 --concurrency 1,4 --repeat 3 --out
pptg.json`. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from random import Random

from bench.client.completion import BENCH_PATH, CHAT_PATH, Sampling, describe_server, first_model
from bench.client.http_client import HttpClient, HttpError, headers_from
from bench.pptg.batch import Batch, Target, count_by_server, run_batch
from bench.pptg.options import parser, settings_of
from bench.pptg.prompt_sizer import PromptSizer, Recipe
from bench.pptg.report import BatchRun, Setting, table, write_result
from bench.results_file import describe_machine

_MAX_TRIES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every setting, print the table, write the file.

    Returns:
        0; 1 where a request failed or an answer was shorter than asked for; 2 where the options are wrong.
    """
    command = parser()
    options = command.parse_args(arguments)
    try:
        headers = headers_from(options.api_key_env)
    except ValueError as error:
        command.error(str(error))
    try:
        runs = asyncio.run(measure(options, headers, settings_of(options)))
    except (ValueError, OSError, HttpError, TimeoutError) as error:
        print(f"baton bench pptg: {str(error) or 'a request took longer than --timeout'}", file=sys.stderr)
        return 1
    print(table(runs))
    num_short = sum(
        request.num_completion_tokens < run.setting.output_tokens for run in runs for request in run.batch.requests
    )
    if num_short:
        print(f"{num_short} answers are shorter than --tg: the server does not ban the end", file=sys.stderr)
    return 1 if num_short else 0


async def measure(
    options: argparse.Namespace, headers: Mapping[str, str], settings: Sequence[Setting]
) -> list[BatchRun]:
    """Measure every setting and write the result file.

    Raises:
        HttpError: If a request fails.
        OSError: If the server cannot be reached.
        TimeoutError: If a request takes too long.
        ValueError: If a length cannot be made.
    """
    with closing(HttpClient(options.url, headers)) as client:
        target = await _target(client, options)
        machine, server = describe_machine(), await describe_server(client)
        sizer = PromptSizer(partial(count_by_server, target), None if options.use_prefix_cache else Random())
        runs = await _measure_settings(target, sizer, settings, options)
        cluster = await _cluster(client)
    if options.out:
        head = {"settings": _recorded(options) | {"path": target.path}, "machine": machine, "server": server}
        write_result(options.out, runs, head, cluster)
    return runs


async def measure_batch(target: Target, sizer: PromptSizer, recipe: Recipe, setting: Setting) -> Batch:
    """Return a batch whose prompts have exactly the length, as the server counted them in it.

    Raises:
        ValueError: If the counts stay wrong: the server counts a prompt in different ways.
    """
    for _ in range(_MAX_TRIES):
        prompts = [sizer.prompt(recipe) for _ in range(setting.concurrency)]
        batch = await run_batch(target, prompts, setting.output_tokens)
        counts = {request.num_prompt_tokens for request in batch.requests}
        if counts == {setting.prompt_tokens}:
            return batch
        recipe = await sizer.fit(setting.prompt_tokens)
    raise ValueError(f"prompts of {setting.prompt_tokens} tokens were counted as {sorted(counts)}")


async def _measure_settings(
    target: Target, sizer: PromptSizer, settings: Sequence[Setting], options: argparse.Namespace
) -> list[BatchRun]:
    runs: list[BatchRun] = []
    recipes: dict[int, Recipe] = {}
    for index, setting in enumerate(settings):
        if setting.prompt_tokens not in recipes:
            recipes[setting.prompt_tokens] = await sizer.fit(setting.prompt_tokens)
        recipe = recipes[setting.prompt_tokens]
        for _ in range(options.warmup if index == 0 else 0):
            await measure_batch(target, sizer, recipe, setting)
        for repeat_index in range(options.repeat):
            batch = await measure_batch(target, sizer, recipe, setting)
            runs.append(BatchRun(setting, repeat_index, batch))
            print(f"{setting} {repeat_index + 1}/{options.repeat}: {batch.wall_seconds:.3f} s", file=sys.stderr)
    return runs


async def _target(client: HttpClient, options: argparse.Namespace) -> Target:
    """Return whom to ask: exo's bench endpoint where the server has one, else chat."""
    sampling = Sampling(options.model or await first_model(client), ignore_eos=not options.no_ignore_eos)
    target = partial(
        Target,
        client,
        use_prefix_cache=options.use_prefix_cache,
        timeout_seconds=options.timeout,
        clock=time.perf_counter,
    )
    if options.endpoint != "chat":
        # exo's endpoint bans the end by itself and refuses fields that it does not know.
        bench = target(path=BENCH_PATH, sampling=Sampling(sampling.model, ignore_eos=False))
        try:
            await count_by_server(bench, "")
        except HttpError as error:
            if options.endpoint == "bench" or error.status not in (404, 405):
                raise
        else:
            return bench
    return target(path=CHAT_PATH, sampling=sampling)


async def _cluster(client: HttpClient) -> object:
    """Return exo's cluster state, None where the server has none."""
    try:
        return json.loads(await client.get_json_text("/state"))
    except (HttpError, ValueError):
        return None


def _recorded(options: argparse.Namespace) -> dict[str, object]:
    """Return the options as a file keeps them: no paths of this machine."""
    left_out = ("out", "api_key_env")
    return {name: value for name, value in vars(options).items() if name not in left_out}


if __name__ == "__main__":
    sys.exit(main())
