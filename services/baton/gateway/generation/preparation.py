"""From a request to tokens that can be placed: bounds, template, tokens, block hashes; texts off the event loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from baton.errors import InvalidFieldError, check_range
from baton.gateway.access.api_keys import ApiKey
from baton.gateway.access.tenants import TenantSalts
from baton.gateway.generation import requests
from baton.gateway.generation.tools import plan_reading
from baton.gateway.memory import LONG_CHARACTERS
from baton.gateway.models.catalog import ModelCatalog
from baton.gateway.models.served_model import ServedModel
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from baton.text.tokenizer import Tokenizer
from baton.v1.generation_pb2 import SamplingParameters

ResultT = TypeVar("ResultT")

MAX_BYTES_PER_TOKEN = 64
"""A text with more bytes than this per token of context does not fit, and is refused before it costs anything."""
_DOUBTFUL_CHARACTERS_PER_TOKEN = 16
_TRIED_CHARACTERS_PER_TOKEN = 8
_QUICK_TOKENS = 2048
"""So many tokens are checked and hashed in a quarter of a millisecond: a thread would take longer to be woken."""
_LEAST_EXCESS = 1.25
"""Where so much of a text as is tried alone exceeds the context by this factor, the whole is not tokenized."""
SEED_BITS = 53
"""Of seeds that are drawn: JavaScript reads no more of a number."""
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""Longest stop string: as much text may have to be held back."""
MAX_CACHE_SALT_BYTES = 128
MAX_PRIORITY = 100

MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKENS = 64
MAX_BAD_WORDS = 128
"""Texts; each is up to two sequences of tokens."""
MAX_BAD_WORD_CHARACTERS = 256
MAX_TOP_LOGPROBS = 20
MAX_CONSTRAINT_BYTES = 256 * 1024


class Tokenization(NamedTuple):
    """The tokens of a prompt that is not generated from."""

    token_ids: Sequence[int]
    """May be empty."""
    model: ServedModel
    """Whose they are."""

    @property
    def pieces(self) -> list[str | None]:
        """Return the tokens as the vocabulary writes them."""
        return [self.model.text.tokenizer.piece(token_id) for token_id in self.token_ids]


class ContextLengthError(InvalidFieldError):
    """Prompt and output do not fit the model's context."""

    def __init__(
        self, field: str, max_context_tokens: int, num_tokens: tuple[int, int] | None = None, bound: str = ""
    ) -> None:
        """Make it.

        `field`: the prompt's. `max_context_tokens`: longest sequence that is served. `num_tokens`: of the prompt and of
        the output that was asked for; None: a prompt too long to be tokenized. `bound`: why that is shorter than what
        the model takes, a sentence; empty: it is not.
        """
        limit = bound or f"This model's maximum context length is {max_context_tokens} tokens."
        problem = f"{limit} Your {field} would take far more."
        if num_tokens is not None:
            problem = (
                f"{limit} However, you requested "
                f"{sum(num_tokens)} tokens ({num_tokens[0]} in the {field}, {num_tokens[1]} in the completion). "
                f"Please reduce the length of the {field} or completion."
            )
        super().__init__(field, problem)
        self._causes = max_context_tokens, num_tokens, bound

    @property
    def excess(self) -> str:
        """Return by how much the prompt is too long, for clients that shorten a conversation when they are told so."""
        max_context_tokens, num_tokens, bound = self._causes
        if num_tokens is None:
            return self.problem
        return f"{num_tokens[0]} tokens > {max_context_tokens - 1} maximum{f'; {bound}' if bound else ''}"

    def renamed(self, field: str) -> ContextLengthError:
        """Return the same error of a prompt that the caller knows by another name."""
        return ContextLengthError(field, *self._causes)


class Preparation:
    """Prepares prompts in threads of its own; `close` ends them."""

    def __init__(self, catalog: ModelCatalog, tenants: TenantSalts, *, num_threads: int) -> None:
        self.tenants = tenants
        """Tells owners of API keys apart."""
        self.catalog = catalog
        """Knows the models."""
        self._threads = PromptThreads(num_threads)

    async def prepare(self, request: requests.GenerationRequest, key: ApiKey) -> requests.PreparedPrompt:
        """Return what placing needs; raise InvalidFieldError, NotFoundError (model), UnavailableError (nodes)."""
        arrival_seconds = asyncio.get_running_loop().time()
        model = await self.catalog.model(request.model)
        _check_stop(request.stop)
        if len(request.cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
            raise InvalidFieldError("cache_salt", f"expected at most {MAX_CACHE_SALT_BYTES} bytes")
        check_range("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if key.name:
            request = replace(request, cache_salt=self.tenants.salt_of(key.name, request.cache_salt))
        _check_sampling(request.sampling, model.vocabulary_size)
        work = partial(_prepare, request, model, arrival_seconds)
        is_quick = isinstance(request.prompt, requests.TokenPrompt) and len(request.prompt.token_ids) <= _QUICK_TOKENS
        if is_quick and not (request.bad_words or request.tool_use):
            return work()
        return await self._threads.run(request.prompt, work, key, model.name)

    async def tokenize(self, model_name: str, prompt: requests.Prompt) -> Tokenization:
        """Return the tokens of a prompt, which need not fit the context.

        `model_name` may be an adapter's or an alias; empty: the only model. Raises InvalidFieldError if it is far
        longer than the context, or the template refuses it, NotFoundError if the model is unknown, UnavailableError if
        no node serves it.
        """
        model = await self.catalog.model(model_name)
        token_ids = await self._threads.run(
            prompt, lambda: _tokens(prompt, _text(prompt, model), model), model=model.name
        )
        return Tokenization(token_ids, model)

    async def detokenize(self, model_name: str, token_ids: Sequence[int]) -> str:
        """Return tokens' text; raise InvalidFieldError, NotFoundError for the model, UnavailableError for its nodes."""
        model = await self.catalog.model(model_name)
        if len(token_ids) > model.max_context_tokens * MAX_BYTES_PER_TOKEN:
            raise InvalidFieldError("tokens", f"far more than the model's context of {model.max_context_tokens} tokens")
        _check_token_ids("tokens", token_ids, model.vocabulary_size)
        decode = partial(model.text.tokenizer.decode, token_ids, skip_special_tokens=False)
        return await self._threads.run(requests.TokenPrompt(token_ids), decode, model=model.name)

    def close(self) -> None:
        """End the threads; prompts in work are dropped."""
        self._threads.close()


def _prepare(
    request: requests.GenerationRequest, model: ServedModel, arrival_seconds: float
) -> requests.PreparedPrompt:
    text = _text(request.prompt, model)
    _check_may_fit(request.prompt, text, model)
    token_ids = _tokens(request.prompt, text, model)
    if not token_ids:
        raise InvalidFieldError("prompt", "expected at least one token")
    sampling = _complete_sampling(request, len(token_ids), model)
    for bad_word in _bad_words(request.bad_words, model.text.tokenizer):
        sampling.bad_words.add(token_ids=bad_word)
    reading = plan_reading(request.tool_use, model.text.model_format, text, sampling)
    root = root_hash(model.revision_digest, model.block_tokens, request.cache_salt)
    ends = () if sampling.ignore_eos else model.eos_token_ids
    return requests.PreparedPrompt(
        request=request,
        token_ids=token_ids,
        block_hashes=join_hashes(block_hashes(root, token_ids, model.block_tokens)),
        block_tokens=model.block_tokens,
        model_id=model.name,
        text=model.text,
        adapter=model.adapter,
        model_revision_digest=model.revision_digest,
        sampling=sampling,
        end_token_ids=frozenset((*sampling.stop_token_ids, *ends)),
        arrival_seconds=arrival_seconds,
        kept_token_ids=reading.kept_token_ids,
        is_in_reasoning=reading.is_in_reasoning,
    )


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> Iterator[Sequence[int]]:
    """Yield each word's tokens, and those after a space; raise InvalidFieldError if words are too many or long."""
    if len(words) > MAX_BAD_WORDS:
        raise InvalidFieldError("bad_words", f"expected at most {MAX_BAD_WORDS} strings, got {len(words)}")
    for index, word in enumerate(map(str.lstrip, words)):
        if not 1 <= len(word) <= MAX_BAD_WORD_CHARACTERS:
            problem = f"expected 1 to {MAX_BAD_WORD_CHARACTERS} characters, not all of them white space"
            raise InvalidFieldError(f"bad_words[{index}]", problem)
        bare, spaced = (tokenizer.encode(space + word, add_special_tokens=False) for space in ("", " "))
        yield bare
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            yield spaced


def _text(prompt: requests.Prompt, model: ServedModel) -> str:
    """Return the text of a prompt, a conversation rendered; empty for tokens."""
    _check_prompt_bytes(prompt, model)
    if isinstance(prompt, requests.ChatPrompt) and prompt.continue_final_message and prompt.add_generation_prompt:
        raise InvalidFieldError("continue_final_message", "expected `add_generation_prompt` to be false with it")
    if isinstance(prompt, requests.TextPrompt):
        return prompt.text
    if isinstance(prompt, requests.TokenPrompt):
        return ""
    return model.text.tokenizer.render_chat(
        prompt.messages,
        tools=prompt.tools,
        template_variables=prompt.template_variables,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
    )


def _check_may_fit(prompt: requests.Prompt, text: str, model: ServedModel) -> None:
    """Refuse a text of which a part is too long already: tokenizing a megabyte in vain takes half a second."""
    context_tokens = model.max_context_tokens
    if isinstance(prompt, requests.TokenPrompt) or len(text) <= _DOUBTFUL_CHARACTERS_PER_TOKEN * context_tokens:
        return
    tried = model.text.tokenizer.encode(text[: _TRIED_CHARACTERS_PER_TOKEN * context_tokens], add_special_tokens=False)
    if len(tried) > _LEAST_EXCESS * context_tokens:
        raise _far_too_long(prompt, model)


def _tokens(prompt: requests.Prompt, text: str, model: ServedModel) -> Sequence[int]:
    if not isinstance(prompt, requests.TokenPrompt):
        return model.text.tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens)
    _check_token_ids("prompt", prompt.token_ids, model.vocabulary_size)
    return prompt.token_ids


def _check_prompt_bytes(prompt: requests.Prompt, model: ServedModel) -> None:
    if isinstance(prompt, requests.TokenPrompt):
        num_bytes = len(prompt.token_ids)
        limit = model.max_context_tokens
    else:
        num_bytes = len(prompt.text) if isinstance(prompt, requests.TextPrompt) else num_characters(prompt)
        limit = model.max_context_tokens * MAX_BYTES_PER_TOKEN
    if num_bytes > limit:
        raise _far_too_long(prompt, model)


def _far_too_long(prompt: requests.Prompt, model: ServedModel) -> ContextLengthError:
    field = "messages" if isinstance(prompt, requests.ChatPrompt) else "prompt"
    return ContextLengthError(field, model.max_context_tokens, bound=model.context_bound)


def _complete_sampling(
    request: requests.GenerationRequest, num_prompt_tokens: int, model: ServedModel
) -> SamplingParameters:
    """Return the sampling parameters with seed and token limit; refuse what the context has no room for."""
    sampling = SamplingParameters()
    sampling.CopyFrom(request.sampling)
    if not sampling.HasField("seed"):
        sampling.seed = secrets.randbits(SEED_BITS)
    field = "messages" if isinstance(request.prompt, requests.ChatPrompt) else "prompt"
    room = model.max_context_tokens - num_prompt_tokens
    wanted = sampling.max_token_count if sampling.HasField("max_token_count") else 1
    if wanted > room:
        raise ContextLengthError(field, model.max_context_tokens, (num_prompt_tokens, wanted), model.context_bound)
    if not sampling.HasField("max_token_count"):
        sampling.max_token_count = min(room, request.default_max_tokens or room)
    if sampling.min_token_count > sampling.max_token_count:
        raise InvalidFieldError("min_token_count", f"{sampling.min_token_count} tokens do not fit the limit")
    return sampling


def _check_sampling(sampling: SamplingParameters, vocabulary_size: int) -> None:
    """Check every bound of generation.proto; raise InvalidFieldError naming the first field out of bounds."""
    check_range("temperature", sampling.temperature, 0.0, 100.0)
    if sampling.HasField("top_p"):
        check_range("top_p", sampling.top_p, 0.0, 1.0, is_low_excluded=True)
    check_range("top_k", sampling.top_k, 0)
    check_range("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.HasField("repetition_penalty"):
        check_range("repetition_penalty", sampling.repetition_penalty, 0.0, 10.0, is_low_excluded=True)
    check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _check_counts(sampling)
    _check_structured_output(sampling)
    _check_tokens(sampling, vocabulary_size)


def _check_stop(stops: Sequence[str]) -> None:
    """Check stop strings; InvalidFieldError if there are too many, or one is empty or too long."""
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidFieldError("stop", f"expected at most {MAX_STOP_STRINGS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidFieldError("stop", f"expected strings of 1 to {MAX_STOP_CHARACTERS} characters")


def _check_counts(sampling: SamplingParameters) -> None:
    check_range("min_token_count", sampling.min_token_count, 0)
    if sampling.HasField("max_token_count"):
        check_range("max_token_count", sampling.max_token_count, 1)
        if sampling.min_token_count > sampling.max_token_count:
            problem = f"{sampling.min_token_count} is more than the limit of {sampling.max_token_count} tokens"
            raise InvalidFieldError("min_token_count", problem)
    check_range("top_logprob_count", sampling.top_logprob_count, 0, MAX_TOP_LOGPROBS)
    check_range("prompt_logprob_count", sampling.prompt_logprob_count, 0, MAX_TOP_LOGPROBS)


def _check_structured_output(sampling: SamplingParameters) -> None:
    """Check what needs no compiler; the nodes have it."""
    if sampling.HasField("structured_output"):
        kind = sampling.structured_output.WhichOneof("constraint")
        if kind is None:
            raise InvalidFieldError("structured_output", "expected one of json_schema, regex, lark")
        num_bytes = len(getattr(sampling.structured_output, kind).encode())
        if not 1 <= num_bytes <= MAX_CONSTRAINT_BYTES:
            problem = f"expected 1 to {MAX_CONSTRAINT_BYTES} bytes, got {num_bytes}"
            raise InvalidFieldError(f"structured_output.{kind}", problem)


def _check_tokens(sampling: SamplingParameters, vocabulary_size: int) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidFieldError("logit_bias", f"expected at most {MAX_LOGIT_BIAS_ENTRIES} entries")
    for bias in sampling.logit_bias.values():
        check_range("logit_bias", bias, -100.0, 100.0)
    _check_token_ids("logit_bias", list(sampling.logit_bias), vocabulary_size)
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidFieldError("stop_token_ids", f"expected at most {MAX_STOP_TOKENS} entries")
    _check_token_ids("stop_token_ids", sampling.stop_token_ids, vocabulary_size)


def _check_token_ids(field: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Check that tokens are in the vocabulary; raise InvalidFieldError with the smallest or largest outside."""
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocabulary_size:
            raise InvalidFieldError(field, f"token id {token_id} is not in 0 to {vocabulary_size - 1}")


class PromptThreads:
    """Threads that work on prompts: short ones never wait for long ones, which have half as many more, at least one.

    A tenant has as many prompts of one model in the threads' queues at once as they and its weight are: its others wait
    for these. So where several tenants wait, or several models are asked, each gets its share, and one alone keeps all
    threads busy. `close` ends the threads.
    """

    def __init__(self, num_threads: int) -> None:
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(max(1, num_threads // 2), thread_name_prefix="long-tokenizer")
        self._num_threads = num_threads
        self._turns: dict[_Turn, asyncio.Semaphore] = {}

    async def run(
        self, prompt: requests.Prompt, work: Callable[[], ResultT], key: ApiKey | None = None, model: str = ""
    ) -> ResultT:
        """Return what work on a prompt of a model gives, for the owner of a key; never None."""
        result = await self._run_in(self._short, lambda: None if _is_long(prompt) else work(), key, model)
        return await self._run_in(self._long, work, key, model) if result is None else result

    async def _run_in(
        self, threads: ThreadPoolExecutor, work: Callable[[], ResultT], key: ApiKey | None, model: str
    ) -> ResultT:
        name, weight = (key.name, key.weight) if key else ("", 1)
        turn = _Turn(model, name, weight, threads)
        async with self._turns.setdefault(turn, asyncio.Semaphore(weight * self._num_threads)):
            return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """End the threads; prompts in work are dropped."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


class _Turn(NamedTuple):
    """Whose prompts take turns with others'."""

    model: str
    tenant: str
    weight: int
    threads: ThreadPoolExecutor


def num_characters(prompt: requests.ChatPrompt) -> int:
    """Return the size of what is rendered for the model, tools included."""
    texts = (value for turn in prompt.messages for value in turn.values())
    num_characters = sum(len(text) for text in texts if isinstance(text, str))
    return num_characters + sum(len(str(tool.parameters)) for tool in prompt.tools)


def _is_long(prompt: requests.Prompt) -> bool:
    if isinstance(prompt, requests.ChatPrompt):
        return num_characters(prompt) > LONG_CHARACTERS
    return len(prompt.text if isinstance(prompt, requests.TextPrompt) else prompt.token_ids) > LONG_CHARACTERS
