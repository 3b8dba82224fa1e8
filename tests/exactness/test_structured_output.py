"""Outputs that must have a form, on both engines: they have it, wherever and in however many pieces they are made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from baton.engine.engine import Engine
from baton.engine.events import Ended
from baton.engine.request import SamplingParams, StructuredOutput
from exactness.handover import generate, greedy, held, start_engine
from exactness.loading import Framework, load_runner
from exactness.random_schemas import Schema, random_schema
from exactness.structured import EOS, folder, text_of, tokenizer
from order import RUNS_ALL

NUM_SCHEMAS = 200 if RUNS_ALL else 40
MAX_TOKENS = 1500
FRAMEWORKS: tuple[Framework, ...] = ("torch", "mlx")
TEXT_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "größe": {"type": "array", "items": {"type": "integer", "minimum": -99, "maximum": 99}, "minItems": 9},
        "текст": {"type": "string", "minLength": 20, "maxLength": 30},
        "日本": {"type": "string", "pattern": "^[ぁ-ん]{6,8}$"},
    },
    "required": ["größe", "текст", "日本"],
    "additionalProperties": False,
}


def of_schema(schema: Schema, seed: int = 0, **fields: object) -> SamplingParams:
    """Return parameters of an output that a random model ends: at quotation marks it is helped along."""
    (quote,) = tokenizer().encode('"')
    params = SamplingParams(
        seed=seed,
        max_tokens=MAX_TOKENS,
        logit_bias={quote: 4.0},
        structured_output=StructuredOutput("json_schema", json.dumps(schema, ensure_ascii=False)),
    )
    return replace(params, **fields)  # type: ignore[arg-type]


def prompt_of(seed: int, length: int | None = None) -> list[int]:
    """Return tokens without a pattern."""
    return [3 + (index * index * 7 + 31 * seed) % 500 for index in range(length or 1 + seed % 40)]


@cache
def outputs(framework: Framework) -> list[tuple[Ended, list[int]]]:
    """Return how the generation of each schema ended, and its tokens."""
    engine = start_engine(load_runner(framework, folder(), num_blocks=2048))
    generations = [
        generate(engine, f"schema-{seed}", prompt_of(seed), of_schema(random_schema(seed), seed))
        for seed in range(NUM_SCHEMAS)
    ]
    tokens = [generation.tokens() for generation in generations]
    engine.close()
    return [(generation.ended, each) for generation, each in zip(generations, tokens, strict=True)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_output_is_valid_json_of_its_schema(framework: Framework) -> None:
    """Random schemas on a random model, sampled at temperature 1; formats are checked too."""
    wrong = []
    for seed, (ended, token_ids) in enumerate(outputs(framework)):
        validator = Draft202012Validator(random_schema(seed), format_checker=Draft202012Validator.FORMAT_CHECKER)
        text = text_of(token_ids)
        if ended.reason != "stop" or not validator.is_valid(json.loads(text)):
            wrong.append((seed, ended.reason, text))

    assert not wrong


def test_both_engines_choose_the_same_tokens() -> None:
    """In float32, for all schemas."""
    torch_outputs, mlx_outputs = ([tokens for _, tokens in outputs(framework)] for framework in FRAMEWORKS)

    assert torch_outputs == mlx_outputs


@pytest.fixture(scope="module", params=FRAMEWORKS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return a running engine of each framework in turn."""
    engine = start_engine(load_runner(request.param, folder()))
    yield engine
    engine.close()


def test_letters_of_any_script_come_whole(engine: Engine) -> None:
    """Their bytes come in several tokens; lengths count characters."""
    output = generate(engine, "scripts", prompt_of(1), of_schema(TEXT_SCHEMA, seed=3)).tokens()

    value = json.loads(text_of(output))
    assert Draft202012Validator(TEXT_SCHEMA).is_valid(value)
    assert re.fullmatch("[ぁ-ん]{6,8}", value["日本"])


def test_a_remote_prefill_gives_the_same_output(engine: Engine) -> None:
    """Its node samples the first token, by the same grammar; the decode node follows it."""
    params = of_schema(TEXT_SCHEMA, seed=5)
    expected = generate(engine, "local", prompt_of(2, 50), params).tokens()
    for framework in FRAMEWORKS:
        prefill = start_engine(load_runner(framework, folder()))

        output = generate(engine, f"from-{framework}", prompt_of(2, 50), params, prefill=prefill).tokens()

        prefill.close()
        assert output == expected


def test_a_remote_first_token_that_completes_the_output_ends_it(engine: Engine) -> None:
    """A form of one token, computed elsewhere."""
    prefill = start_engine(load_runner("torch", folder()))
    params = SamplingParams(structured_output=StructuredOutput("regex", "x"), max_tokens=9)

    generation = generate(engine, "one", prompt_of(3, 20), params, prefill=prefill)

    assert text_of(generation.tokens()) == "x"
    assert (generation.ended.reason, generation.ended.stop_token_id) == ("stop", None)
    prefill.close()


def test_a_prefix_hit_gives_the_same_output(engine: Engine) -> None:
    """Whatever part of the prompt is cached."""
    params = of_schema(TEXT_SCHEMA, seed=7)
    first = generate(engine, "miss", prompt_of(4, 100), params)
    expected = first.tokens()

    second = generate(engine, "hit", prompt_of(4, 100), params)

    assert second.tokens() == expected
    assert (first.ended.prompt_work.num_cached_tokens, second.ended.prompt_work.num_cached_tokens) == (0, 96)


def test_a_migrated_generation_goes_on_in_its_form(engine: Engine) -> None:
    """From any token on, another attempt gives the rest of the same output."""
    params = of_schema(TEXT_SCHEMA, seed=9)
    whole = generate(engine, "whole", prompt_of(5), params).tokens()
    for cut in (1, 2, len(whole) // 2, len(whole) - 1):
        rest = generate(engine, f"cut-{cut}", prompt_of(5), params, output=whole[:cut])

        assert rest.tokens(first_index=cut) == whole[cut:]


def test_a_migrated_generation_that_was_complete_ends_at_once(engine: Engine) -> None:
    """The earlier attempt delivered the last token and could not say so."""
    params = SamplingParams(structured_output=StructuredOutput("regex", "abc"), max_tokens=50)
    whole = generate(engine, "abc", prompt_of(6), params).tokens()

    again = generate(engine, "abc-again", prompt_of(6), params, output=whole)

    assert again.tokens(first_index=len(whole)) == []
    assert again.ended.reason == "stop"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_preempted_generations_go_on_in_their_form(framework: Framework) -> None:
    """In a pool too small for all of them, each output is what it is alone."""
    params = [of_schema(TEXT_SCHEMA, seed=seed, ignore_eos=seed % 2 == 0) for seed in range(6)]
    roomy = start_engine(load_runner(framework, folder()))
    expected = [generate(roomy, f"{seed}", prompt_of(seed), params[seed]).tokens() for seed in range(6)]
    roomy.close()
    most = max(len(prompt_of(seed)) + len(output) for seed, output in enumerate(expected))
    params = [replace(each, max_tokens=most) for each in params]
    engine = start_engine(load_runner(framework, folder(), num_blocks=most // 16 + 6))

    with held(engine):
        generations = [generate(engine, f"{seed}", prompt_of(seed), params[seed]) for seed in range(6)]

    assert [generation.tokens() for generation in generations] == expected
    assert sum(generation.ended.num_preemptions for generation in generations) > 0
    engine.close()


def test_neighbours_without_a_form_are_not_disturbed(engine: Engine) -> None:
    """Plain greedy rows keep their tokens in a batch with structured ones."""
    alone = generate(engine, "alone", prompt_of(7), greedy(40)).tokens()

    structured = generate(engine, "structured", prompt_of(8), of_schema(TEXT_SCHEMA))
    plain = generate(engine, "plain", prompt_of(7), greedy(40))

    assert plain.tokens() == alone
    assert Draft202012Validator(TEXT_SCHEMA).is_valid(json.loads(text_of(structured.tokens())))


def test_a_limit_cuts_the_form(engine: Engine) -> None:
    """Then the reason is the length, and the text may be incomplete."""
    generation = generate(engine, "cut", prompt_of(9), of_schema(TEXT_SCHEMA, max_tokens=5))

    assert len(generation.tokens()) == 5
    assert generation.ended.reason == "length"


def test_greedy_choices_take_the_best_token_that_the_form_allows(engine: Engine) -> None:
    """Not only sampled ones are masked."""
    params = replace(greedy(30), structured_output=StructuredOutput("regex", "[0-9]{12}"))

    assert re.fullmatch("[0-9]{12}", text_of(generate(engine, "digits", prompt_of(10), params).tokens()))


def test_an_end_token_comes_only_where_the_form_is_complete(engine: Engine) -> None:
    """Favoured above everything else, it comes at the first complete place and no sooner."""
    favoured = SamplingParams(
        temperature=0.0,
        max_tokens=60,
        logit_bias={EOS: 100.0},
        structured_output=StructuredOutput("regex", "[a-z]{8}( [a-z]{8})*"),
    )

    output = generate(engine, "favoured", prompt_of(11), favoured).tokens()

    assert output[-1] == EOS
    assert re.fullmatch("[a-z]{8}", text_of(output))


def test_a_minimum_of_tokens_puts_off_the_end_where_the_form_allows_more(engine: Engine) -> None:
    """And yields where it does not."""
    structured = StructuredOutput("regex", "a( a)*")
    params = SamplingParams(temperature=0.0, max_tokens=60, logit_bias={EOS: 100.0}, min_tokens=20)

    long = generate(engine, "long", prompt_of(12), replace(params, structured_output=structured)).tokens()
    short = generate(
        engine, "short", prompt_of(12), replace(params, structured_output=StructuredOutput("regex", "abc"))
    ).tokens()

    assert len(long) == 21
    assert re.fullmatch("a( a)*", text_of(long))
    assert text_of(short) == "abc"


def test_logprobs_are_those_of_the_model_without_the_form(engine: Engine) -> None:
    """A forced token may be improbable; alternatives are what the model would have said."""
    params = replace(greedy(1), structured_output=StructuredOutput("regex", "q"), num_top_logprobs=3)
    free = replace(greedy(1), num_top_logprobs=3)

    forced, unforced = (
        generate(engine, name, prompt_of(13), each).first_token() for name, each in (("f", params), ("u", free))
    )

    assert forced.alternatives == unforced.alternatives
    assert forced.logprob is not None
    assert unforced.logprob is not None
    assert forced.logprob < unforced.logprob
