"""Compiles constraints with llguidance, in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from baton.engine.constraints.constraint import Constraint, problem_of
from baton.engine.constraints.limits import STACK_BYTES, check_limits
from baton.engine.request import ConstraintKind, StructuredOutput
from baton.errors import BatonError, ConfigurationError, InvalidFieldError, OverloadedError
from baton.installation import install_line

TIMEOUT_SECONDS = 10.0
"""A compilation that takes longer is refused. What its counters allow takes a second or two."""
NUM_THREADS = 2
MAX_PENDING = 256
"""Requests waiting for their constraints at most; more are refused."""
MAX_COMPILED = 64
_JSON_OPTIONS: Any = {"lenient": False, "coerce_one_of": False}
"""No keyword is left out in silence."""
_JSON_DEFAULTS: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
"""White space costs tokens and says nothing; a schema that wants some says so in its `x-guidance`."""
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_items_in_row": 10_000,
    "max_lexer_states": 20_000,
    "verbose_errors": False,
}
"""llguidance's counters, below its defaults: a step takes 10 ms at worst, a grammar some 40 MB."""
_MAX_ERROR_CHARACTERS = 500


class ConstraintCompiler:
    """Compiles each distinct constraint once and keeps the latest.

    Invariant: `_compiled` holds at most `MAX_COMPILED` matchers, each at the start of its language and never moved;
    requests get copies. `load_tokenizer` returns tokenizer.json as text; it is called once, in a compiling thread.
    """

    def __init__(
        self,
        load_tokenizer: Callable[[], str],
        *,
        vocabulary_size: int,
        eos_token_ids: Sequence[int],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._load_tokenizer, self._vocabulary_size = load_tokenizer, vocabulary_size
        self._eos_token_ids = list(eos_token_ids)
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[StructuredOutput, Any] = OrderedDict()
        self._num_pending = 0
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="constraint")

    def warm(self) -> None:
        """Begin to load the tokenizer, which takes seconds where the vocabulary is large."""
        self._threads.submit(self._loaded_tokenizer, "lark")

    async def constraint(
        self, structured_output: StructuredOutput | None, output_token_ids: Sequence[int] = ()
    ) -> Constraint | None:
        """Return the constraint of a request, or None if it has none; the event loop goes on meanwhile.

        One that is compiled is there at once, whatever is being compiled for others. `output_token_ids`, the output of
        earlier attempts, are already followed in it. Raises InvalidFieldError if it is invalid, too complex, or cannot
        be enforced with this model's tokenizer, OverloadedError if too many are waiting to be compiled, ConstraintError
        if the earlier output does not fit it.
        """
        if structured_output is None:
            return None
        if not output_token_ids and (matcher := self._find(structured_output)) is not None:
            return _copy(matcher, structured_output)  # some 10 microseconds
        future = self._start(structured_output, tuple(output_token_ids))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise self._too_slow(structured_output, future) from error

    def constraint_blocking(
        self, structured_output: StructuredOutput, output_token_ids: Sequence[int] = ()
    ) -> Constraint:
        """Return what `constraint` does; the calling thread waits."""
        future = self._start(structured_output, tuple(output_token_ids))
        try:
            return future.result(self._timeout_seconds)
        except TimeoutError as error:
            raise self._too_slow(structured_output, future) from error

    def close(self) -> None:
        """End the threads, each after what it is compiling."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, structured_output: StructuredOutput, output_token_ids: Sequence[int]) -> Future[Constraint]:
        with self._lock:
            if self._num_pending >= MAX_PENDING:
                raise OverloadedError(f"{self._num_pending} structured outputs are being compiled already")
            self._num_pending += 1
        with _STACK_LOCK:  # a submission may start a thread
            usual = threading.stack_size(STACK_BYTES)
            try:
                future = self._threads.submit(self._made, structured_output, output_token_ids)
            finally:
                threading.stack_size(usual)
        future.add_done_callback(self._note_done)
        return future

    def _note_done(self, _future: Future[Constraint]) -> None:
        with self._lock:
            self._num_pending -= 1

    def _too_slow(self, structured_output: StructuredOutput, future: Future[Constraint]) -> BatonError:
        """Return why a request got no constraint in time, and give up on one that is not being compiled yet."""
        if self._tokenizer is None:
            return OverloadedError("structured outputs are not ready: the tokenizer is being loaded")
        if future.cancel():
            return OverloadedError(f"others' structured outputs were being compiled for {self._timeout_seconds:g} s")
        problem = f"too complex: not compiled within {self._timeout_seconds:g} s"
        return InvalidFieldError(f"structured_output.{structured_output.kind}", problem)

    def _made(self, structured_output: StructuredOutput, output_token_ids: Sequence[int]) -> Constraint:
        constraint = _copy(self._matcher(structured_output), structured_output)
        constraint.follow(output_token_ids, 0)
        return constraint

    def _find(self, structured_output: StructuredOutput) -> Any:
        """Return the matcher of a constraint that is compiled, else None."""
        with self._lock:
            matcher = self._compiled.get(structured_output)
            if matcher is not None:
                self._compiled.move_to_end(structured_output)
            return matcher

    def _matcher(self, structured_output: StructuredOutput) -> Any:
        if (matcher := self._find(structured_output)) is not None:
            return matcher
        check_limits(structured_output)
        matcher = self._compile(structured_output)
        with self._lock:
            self._compiled[structured_output] = matcher
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    def _compile(self, structured_output: StructuredOutput) -> Any:
        kind = structured_output.kind
        tokenizer = self._loaded_tokenizer(kind)
        from llguidance import LLMatcher, LLParserLimits

        try:
            grammar = _grammar(kind, structured_output.text)
        except ValueError as error:
            raise InvalidFieldError(f"structured_output.{kind}", str(error)[:_MAX_ERROR_CHARACTERS]) from error
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first step is often the largest: better refused now than failed then
        if matcher.is_error() or matcher.get_grammar_warnings():
            raise InvalidFieldError(f"structured_output.{kind}", problem_of(matcher))
        return matcher

    def _loaded_tokenizer(self, kind: ConstraintKind) -> Any:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = self._load()
                except (ConfigurationError, ValueError) as error:
                    problem = f"the model's tokenizer cannot be used for it: {error}"
                    raise InvalidFieldError(f"structured_output.{kind}", problem) from error
            return self._tokenizer

    def _load(self) -> Any:
        try:
            import llguidance
        except ImportError as error:
            raise ConfigurationError(f"llguidance is not installed: {install_line('worker')}") from error
        text, eos_token_ids = self._load_tokenizer(), self._eos_token_ids or None
        try:
            return llguidance.LLTokenizer(text, n_vocab=self._vocabulary_size, eos_token=eos_token_ids)
        except ValueError:  # a tokenizer may have more tokens than the model has rows
            return llguidance.LLTokenizer(text, eos_token=eos_token_ids)


def _copy(matcher: Any, structured_output: StructuredOutput) -> Constraint:
    return Constraint(matcher.deep_copy(), f"structured_output.{structured_output.kind}")


_STACK_LOCK = threading.Lock()
"""The stack size of threads is a setting of the process."""


def _grammar(kind: ConstraintKind, text: str) -> str:
    from llguidance import LLMatcher

    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(text, _JSON_DEFAULTS, _JSON_OPTIONS)
    return LLMatcher.grammar_from_regex(text) if kind == "regex" else LLMatcher.grammar_from_lark(text)
