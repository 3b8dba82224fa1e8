"""Compiling constraints: what is taken, what is refused and how, and what a bad one may cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from baton.engine.constraints import compilation
from baton.engine.constraints.compilation import ConstraintCompiler
from baton.engine.constraints.constraint import Constraint
from baton.engine.constraints.limits import MAX_PROPERTIES, MAX_REFERENCES, MAX_RULES
from baton.engine.request import ConstraintKind, StructuredOutput
from baton.errors import ConfigurationError, ConstraintError, InvalidFieldError, OverloadedError
from engine.tokens import EOS, VOCABULARY_SIZE, tokenizer_text, tokens_of


def compiler_of(load: Callable[[], str] = tokenizer_text, **fields: Any) -> ConstraintCompiler:
    """Return a compiler for a tokenizer of single bytes."""
    return ConstraintCompiler(load, vocabulary_size=VOCABULARY_SIZE, eos_token_ids=[EOS], **fields)


COMPILER = compiler_of()
TOO_COMPLEX = 'start: (("a" "b"){1000} "c"){1000}'
"""Compiles, and cannot be followed."""


def compiled(kind: ConstraintKind, text: str, output: str = "") -> Constraint:
    """Return a constraint that has followed a text."""
    made = asyncio.run(COMPILER.constraint(StructuredOutput(kind, text), tokens_of(output)))
    assert made is not None
    return made


def schema(**keywords: object) -> str:
    """Return a schema as JSON text."""
    return json.dumps(keywords)


def chain_of_references(length: int, **also: object) -> str:
    """Return a schema whose definitions each name the next."""
    parts: dict[str, object] = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} | also for index in range(length - 1)}
    return json.dumps({"$defs": parts | {f"d{length - 1}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def chain_of_rules(length: int) -> str:
    """Return a grammar whose rules each name the next."""
    return "start:r0\n" + "".join(f"r{index}:r{index + 1}\n" for index in range(length - 2)) + f'r{length - 2}:"a"'


def test_no_form_needs_no_constraint() -> None:
    """And no tokenizer."""
    assert asyncio.run(compiler_of(lambda: pytest.fail("loaded")).constraint(None)) is None


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("json_schema", '{"type": "object"}', '{"a":[1,{"b":null}]}'),
        ("json_schema", schema(enum=["x", 1]), "1"),
        ("json_schema", chain_of_references(MAX_REFERENCES - 1), "null"),
        ("regex", "a{2,3}b?", "aab"),
        ("regex", "^[äö]+$", "öä"),
        ("lark", 'start: "<" item* ">"\nitem: /[a-z]/', "<ab>"),
        ("lark", 'start: %json {"type": "integer"}', "-12"),
        ("lark", chain_of_rules(MAX_RULES), "a"),
    ],
)
def test_each_kind_of_constraint_takes_its_sentences(kind: ConstraintKind, text: str, sentence: str) -> None:
    """At their end an end token is allowed, and not before."""
    constraint = compiled(kind, text)
    is_end_allowed = []
    token_ids = tokens_of(sentence)
    for end in range(len(token_ids) + 1):
        constraint.follow(token_ids[:end], 0)
        is_end_allowed.append(constraint.is_complete or constraint.allowed(VOCABULARY_SIZE, {EOS})[EOS])

    assert is_end_allowed[-1]
    assert not is_end_allowed[0]


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("json_schema", "{", "not a JSON text"),
        ("json_schema", "[1]", "expected an object"),
        ("json_schema", "[" * 100_000, "not a JSON text"),
        ("json_schema", schema(type="strin"), "strin"),
        ("json_schema", schema(**{"not": {}}), "not"),
        ("json_schema", schema(type="array", uniqueItems=True), "uniqueItems"),
        ("json_schema", schema(**{"if": {}, "then": {}}), '"if", "then"'),
        ("json_schema", schema(oneOf=[{"type": "integer"}, {"type": "number"}]), "oneOf"),
        ("json_schema", schema(type="string", nullable=True), "'nullable' is not supported"),
        ("json_schema", schema(properties={"a": {"additionalItems": False}}), "'additionalItems' is not supported"),
        ("lark", "start: x\nx: %json " + schema(type="string", nullable=True), "'nullable' is not supported"),
        ("lark", 'start: %json {"type": "null"} %json {"items": {"extends": {}}}', "'extends' is not supported"),
        ("json_schema", schema(type="string", format="no-such"), "no-such"),
        ("json_schema", schema(**{"$ref": "http://127.0.0.1/schema"}), "127.0.0.1"),
        ("json_schema", schema(minimum=5, maximum=4, type="integer"), "greater"),
        ("json_schema", json.dumps({"x-guidance": {"lenient": True}, "not": {}}), "not"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("lark", "start: nowhere", "nowhere"),
        ("lark", 'begin: "a"', "start"),
        ("lark", "start: <|nowhere|>", "nowhere"),
    ],
)
def test_a_constraint_that_is_wrong_is_refused_with_what_is_wrong(
    kind: ConstraintKind, text: str, problem: str
) -> None:
    """No keyword is dropped in silence, and none is fetched from anywhere."""
    with pytest.raises(InvalidFieldError) as caught:
        compiled(kind, text)

    assert caught.value.field == f"structured_output.{kind}"
    assert problem in caught.value.message


def test_names_of_properties_are_no_keywords() -> None:
    """A property may have the name of a keyword that is refused."""
    properties = {"nullable": {"const": "nullable", "default": {"nullable": 1}}}

    compiled("json_schema", schema(type="object", properties=properties))
    compiled("lark", "start: %json " + schema(type="object", properties=properties))
    compiled("lark", 'start: "%json {\\"nullable\\": 1}" | "%json {"')


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"not":' * 20_000 + "{}" + "}" * 20_000),
        ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
        ("json_schema", '{"const":' + "[" * 50_000 + "]" * 50_000 + "}"),
        ("json_schema", chain_of_references(5000)),
        ("json_schema", chain_of_references(MAX_REFERENCES + 2, anyOf=[{"type": "null"}])),
        ("json_schema", schema(properties={f"k{index}": {"type": "string"} for index in range(5000)})),
        ("json_schema", schema(anyOf=[{"type": "string", "pattern": "^" + "(a|b)?" * 40_000 + "$"}])),
        ("json_schema", schema(allOf=[{"type": "string", "pattern": f"^(a|b)*{index}"} for index in range(5000)])),
        ("json_schema", schema(patternProperties={"^" + "(a|b)?" * 9000 + "$": {}})),
        ("json_schema", schema(type="number", minimum=1e-300, maximum=1e300)),
        ("regex", "(" * 16_000 + ")" * 16_000),
        ("regex", "(a|b)?" * 40_000),
        ("lark", chain_of_rules(24_000)),
        ("lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
        ("lark", "start: %json " + chain_of_references(5000)),
        ("lark", "start: %json " + chain_of_references(5000).replace("$ref", "\\u0024\\u0072\\u0065\\u0066")),
        ("lark", "start: %lark { start: " * 5000 + '"a"' + "}" * 5000),
        ("lark", "start: %json " + schema(type="string", pattern="^" + "(a|b)?" * 9000 + "$")),
        ("lark", "start: %json " + schema(properties={f"k{index}": {} for index in range(MAX_PROPERTIES + 1)})),
    ],
    ids=range(19),
)
def test_a_constraint_that_is_too_much_is_refused(kind: ConstraintKind, text: str) -> None:
    """By its size, depth or fuel: no stack overflows, no thread computes for ever."""
    with pytest.raises(InvalidFieldError) as caught:
        compiled(kind, text)

    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    "text", [schema(minLength=10**7, type="string"), schema(minItems=10**9, items={"type": "integer"}, type="array")]
)
def test_large_bounds_cost_nothing(text: str) -> None:
    """They are counted, not written out."""
    assert not compiled("json_schema", text).is_complete


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        ("json_schema", schema(properties={f"k{index}": {"type": "string"} for index in range(MAX_PROPERTIES)}), "{"),
        ("json_schema", schema(type="integer", multipleOf=1_000_003, minimum=0, maximum=10**30), "1"),
        ("lark", "start: " + '"a" ' * 60_000, "aa"),
        ("lark", TOO_COMPLEX, "abab"),
        ("lark", "start: " + "|".join(f'"a" "b{index}"' for index in range(9000)), "a"),
    ],
    ids=range(5),
)
def test_a_step_is_taken_or_failed_within_bounds(kind: ConstraintKind, text: str, output: str) -> None:
    """In the engine's thread: what is too much ends this request and delays the others a little."""
    try:
        constraint = compiled(kind, text)
    except InvalidFieldError:
        return
    started = time.process_time()  # others may use the machine
    with contextlib.suppress(InvalidFieldError):
        constraint.follow(tokens_of(output), 0)
        assert constraint.allowed(VOCABULARY_SIZE, {EOS}).any()

    assert time.process_time() - started < 5


def test_a_grammar_that_becomes_too_complex_is_the_request_s_fault() -> None:
    """Whether that shows when a token is taken or when the next is chosen, the field is named."""
    constraint = compiled("lark", TOO_COMPLEX)
    with pytest.raises(InvalidFieldError, match="too complex after 0 tokens of output") as caught:
        constraint.follow(tokens_of("ab"), 0)
    with pytest.raises(InvalidFieldError) as chosen:
        constraint.allowed(VOCABULARY_SIZE, {EOS})

    assert caught.value.field == chosen.value.field == "structured_output.lark"
    assert "limit" in caught.value.message
    assert "non-verbose" not in caught.value.message


def test_a_grammar_without_a_way_on_is_the_request_s_fault() -> None:
    """Its next token is none that the model has."""
    with pytest.raises(InvalidFieldError, match="no token can follow the first 0 of the output"):
        compiled("lark", "start: <[9]>").allowed(8, set())


def test_a_form_that_no_output_has_is_refused_in_plain_words() -> None:
    """The schema is its own and only part."""
    with pytest.raises(InvalidFieldError, match="no output has this form"):
        compiled("json_schema", json.dumps({"$ref": "#"}))


def test_a_constraint_is_compiled_once() -> None:
    """Each request gets a copy at the start, whatever another has done with its own."""
    loads: list[None] = []

    def load() -> str:
        loads.append(None)
        return tokenizer_text()

    async def run() -> list[Constraint | None]:
        compiler = compiler_of(load)
        wanted = StructuredOutput("regex", "ab")
        first = await compiler.constraint(wanted)
        assert first is not None
        first.follow(tokens_of("ab"), 0)
        return [first, await compiler.constraint(wanted)]

    first, second = asyncio.run(run())

    assert first is not None
    assert second is not None
    assert first.is_complete
    assert not second.is_complete
    assert len(loads) == 1


def test_the_latest_constraints_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded memory, however many schemas clients invent."""
    monkeypatch.setattr(compilation, "MAX_COMPILED", 3)
    compiler = compiler_of()

    async def run() -> None:
        for index in range(6):
            await compiler.constraint(StructuredOutput("regex", f"a{index}"))

    asyncio.run(run())

    assert [key.text for key in compiler._compiled] == ["a3", "a4", "a5"]


def test_earlier_output_is_followed_and_must_fit() -> None:
    """A migrated request starts where it was; one whose output is no beginning of a sentence is refused."""
    assert compiled("regex", "abc", output="abc").is_complete
    with pytest.raises(ConstraintError, match="left its form"):
        compiled("regex", "abc", output="ax")


def test_a_tokenizer_that_cannot_be_used_is_named() -> None:
    """The model generates, but not in a form."""

    def load() -> str:
        raise ConfigurationError("it has no tokenizer")

    with pytest.raises(InvalidFieldError, match=r"structured_output\.regex: .* it has no tokenizer"):
        asyncio.run(compiler_of(load).constraint(StructuredOutput("regex", "a")))


def test_the_event_loop_goes_on_while_a_constraint_is_compiled_and_gives_up_in_time() -> None:
    """Loading hangs here until the request has been refused, which nobody could be while the loop hangs too."""
    can_go_on = threading.Event()
    was_told: list[bool] = []

    def load() -> str:
        was_told.append(can_go_on.wait(60))
        return tokenizer_text()

    async def run() -> None:
        compiler = compiler_of(load, timeout_seconds=0.05)
        with pytest.raises(OverloadedError, match="the tokenizer is being loaded"):
            await compiler.constraint(StructuredOutput("regex", "a"))

    asyncio.run(run())

    assert was_told == []
    can_go_on.set()


def test_a_constraint_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own fault, once the tokenizer is there; in the calling thread as well. Those behind it may try again."""
    can_go_on = threading.Event()
    compiler = compiler_of(timeout_seconds=60.0)
    compiler.warm()
    asyncio.run(compiler.constraint(StructuredOutput("regex", "a")))
    compiler._timeout_seconds = 1.0  # within which a thread of a busy machine has begun
    monkeypatch.setattr(compilation, "check_limits", lambda _form: can_go_on.wait(60))

    with pytest.raises(InvalidFieldError, match="too complex: not compiled within"):
        asyncio.run(compiler.constraint(StructuredOutput("regex", "b")))
    with pytest.raises(InvalidFieldError, match="too complex: not compiled within"):
        compiler.constraint_blocking(StructuredOutput("regex", "c"))
    compiler._timeout_seconds = 0.05  # both threads are busy
    with pytest.raises(OverloadedError, match="others' structured outputs"):
        asyncio.run(compiler.constraint(StructuredOutput("regex", "d")))
    with pytest.raises(OverloadedError, match="others' structured outputs"):
        compiler.constraint_blocking(StructuredOutput("regex", "e"))
    assert asyncio.run(compiler.constraint(StructuredOutput("regex", "a"))) is not None  # which is compiled

    can_go_on.set()
    compiler.close()


def test_too_many_at_once_are_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of the compiling threads is bounded."""
    monkeypatch.setattr(compilation, "MAX_PENDING", 2)
    can_go_on = threading.Event()

    def load() -> str:
        can_go_on.wait(20)
        return tokenizer_text()

    async def run() -> None:
        compiler = compiler_of(load)
        waiting = [asyncio.create_task(compiler.constraint(StructuredOutput("regex", text))) for text in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await compiler.constraint(StructuredOutput("regex", "c"))
        can_go_on.set()
        await asyncio.gather(*waiting)
        await compiler.constraint(StructuredOutput("regex", "c"))

    asyncio.run(run())
