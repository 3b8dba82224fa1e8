"""A request as services hand it over: its tokens, how the next ones are chosen, what form the output must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from baton.engine.constraints.constraint import Constraint
from baton.engine.runners.base import LayerKv, ModelInfo
from baton.errors import InvalidFieldError, check_range

ConstraintKind = Literal["json_schema", "regex", "lark"]
"""The language that a constraint is written in."""

MAX_CONSTRAINT_BYTES = 256 * 1024
"""Longest constraint, UTF-8. What matters more is how complex it is; that shows when it is compiled."""
EXPORT_TOKENS = 512
"""Cached positions handed out at once, so that no frame grows with the prompt."""
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKENS = 64
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A language that the whole output must be a sentence of (protos/baton/v1/generation.proto, StructuredOutput)."""

    kind: ConstraintKind
    """Language of `text`."""
    text: str
    """JSON Schema as JSON text, a regular expression, or a grammar in llguidance's dialect of Lark."""

    def check(self) -> None:
        """Check what needs no compiler; raise InvalidFieldError if the text is empty or too long."""
        num_bytes = len(self.text.encode())
        if not 1 <= num_bytes <= MAX_CONSTRAINT_BYTES:
            expected = f"expected 1 to {MAX_CONSTRAINT_BYTES} bytes"
            raise InvalidFieldError(f"structured_output.{self.kind}", f"{expected}, got {num_bytes}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request (protos/baton/v1/generation.proto, SamplingParameters)."""

    temperature: float = 1.0
    """Divides the logits; 0 to 100, 0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens with at least this probability; above 0 to 1."""
    top_k: int = 0
    """Most probable tokens kept; 0: all."""
    min_p: float = 0.0
    """Drops tokens less probable than this share of the most probable; 0 to 1."""
    seed: int = 0
    """Seed of the randomness, a signed 64-bit number."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens of prompt and output; above 0 to 10."""
    presence_penalty: float = 0.0
    """Subtracted from logits of output tokens; -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output; -2 to 2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits by token id; -100 to 100 each."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the generation, beside the model's own."""
    ignore_eos: bool = False
    """Whether the model's end tokens are ordinary tokens."""
    min_tokens: int = 0
    """Tokens before which no end token can be chosen."""
    max_tokens: int | None = None
    """Tokens after which the generation ends; None: the end of the context."""
    num_top_logprobs: int | None = None
    """Alternatives reported per token, 0 to 20; None: no log-probabilities."""
    num_prompt_logprobs: int | None = None
    """Alternatives reported per prompt token, 0 to 20; None: no log-probabilities of the prompt."""
    structured_output: StructuredOutput | None = None
    """Form that the whole output must have; None: any."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the output cannot contain; 256 at most, each of 1 to 64."""

    needs_rows: bool = field(init=False, compare=False)
    """Whether choosing needs more of the logits than their argmax, be that no masked end token."""
    is_plain: bool = field(init=False, compare=False)
    """Whether the choice depends on logits, temperature, seed and position alone, once `min_tokens` are there."""

    def __post_init__(self) -> None:
        """Answer once what is asked for every token."""
        is_plain = self.is_greedy and self.num_top_logprobs is None and self.structured_output is None
        object.__setattr__(self, "needs_rows", not is_plain or self.shifts_logits)
        is_filtered = self.top_k or self.top_p < 1.0 or self.min_p > 0.0
        is_reported = self.num_top_logprobs is not None or self.structured_output is not None
        is_drawn = not (is_filtered or is_reported or self.shifts_logits)
        object.__setattr__(self, "is_plain", is_drawn or not self.needs_rows)

    @property
    def is_greedy(self) -> bool:
        """Return whether the most probable token is always taken."""
        return self.temperature == 0.0

    @property
    def shifts_logits(self) -> bool:
        """Return whether any logits but those of masked end tokens are edited."""
        return bool(
            self.logit_bias
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.bad_words
        )

    def check(self, vocabulary_size: int) -> None:
        """Check every bound; raise InvalidFieldError naming the first field out of bounds."""
        check_range("temperature", self.temperature, 0.0, 100.0)
        check_range("top_p", self.top_p, 0.0, 1.0, is_low_excluded=True)
        check_range("top_k", self.top_k, 0)
        check_range("min_p", self.min_p, 0.0, 1.0)
        check_range("seed", self.seed, -(2**63), 2**63 - 1)
        check_range("repetition_penalty", self.repetition_penalty, 0.0, 10.0, is_low_excluded=True)
        check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_range("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            check_range("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidFieldError("min_tokens", f"{self.min_tokens} is more than max_tokens {self.max_tokens}")
        if self.num_top_logprobs is not None:
            check_range("top_logprobs", self.num_top_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.num_prompt_logprobs is not None:
            check_range("prompt_logprobs", self.num_prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.structured_output is not None:
            self.structured_output.check()
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidFieldError("logit_bias", f"expected at most {MAX_LOGIT_BIAS_ENTRIES} entries")
        for token_id, bias in self.logit_bias.items():
            check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
            if not 0 <= token_id < vocabulary_size:
                raise InvalidFieldError("logit_bias", f"token id {token_id} is not in 0 to {vocabulary_size - 1}")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise InvalidFieldError("stop_token_ids", f"expected at most {MAX_STOP_TOKENS} entries")
        for token_id in self.stop_token_ids:
            if not 0 <= token_id < vocabulary_size:
                raise InvalidFieldError("stop_token_ids", f"token id {token_id} is not in 0 to {vocabulary_size - 1}")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidFieldError("bad_words", f"expected at most {MAX_BAD_WORDS} entries")
        if not all(1 <= len(word) <= MAX_BAD_WORD_TOKENS for word in self.bad_words):
            raise InvalidFieldError("bad_words", f"expected 1 to {MAX_BAD_WORD_TOKENS} tokens each")
        if not all(0 <= token_id < vocabulary_size for word in self.bad_words for token_id in word):
            raise InvalidFieldError("bad_words", f"expected token ids of 0 to {vocabulary_size - 1}")


class Purpose(Enum):
    """What the engine does with a request."""

    GENERATE = "generate"
    """Compute the prompt and generate."""
    RECEIVE = "receive"
    """Take the prompt's KV and the first token from another node, then generate."""
    PREFILL = "prefill"
    """Compute the prompt, hand its KV out, sample one token."""


KvSink: TypeAlias = Callable[[int, int, LayerKv], None]
"""Takes the KV of a PREFILL request, from the engine thread: first position, layer, K and V; must not block. What was
taken before comes again after a preemption."""


@dataclass(frozen=True, slots=True)
class KvExportSpec:
    """What a PREFILL request hands out of its KV, and when."""

    sink: KvSink
    """Takes K and V."""
    token_begin: int = 0
    """First position whose KV is handed out."""
    chunk_tokens: int = 0
    """Positions computed in one pass at most; 0: the engine decides."""
    may_begin: Callable[[], bool] = lambda: True
    """Whether there is room for what will be handed out; asked by the engine's thread before it begins."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as services hand it over."""

    request_id: str
    """Unique among the living requests of this engine."""
    prompt_token_ids: tuple[int, ...]
    """Prompt, 1 token or more."""
    params: SamplingParams
    output_token_ids: tuple[int, ...] = ()
    """Output that an earlier attempt has delivered; generation goes on after it."""
    purpose: Purpose = Purpose.GENERATE
    constraint: Constraint | None = None
    """Compiled `params.structured_output`; from the submission on the engine's alone."""
    adapter: str = ""
    """Name of the adapter with which it is computed; empty: the model alone."""
    cache_salt: str = ""
    """Separates prefix caches."""
    priority: int = 0
    """Whose turn it is where requests wait: lower comes earlier."""
    is_cache_bypassed: bool = False
    """Whether to neither read nor fill the prefix cache."""
    export: KvExportSpec | None = None
    """For PREFILL: what is handed out; None: nothing."""
    is_suspect: bool = False
    """Whether it may have ended a process: until some tokens have come it has passes of its own, told beforehand."""
    placement_id: str = ""
    """The router's name for the decision that brought it here, by which it has its turn; empty: there was none."""
    tenant: str = ""
    """Tells tenants apart, and names none; empty: all who have none are one."""
    tenant_weight: int = 1
    """Of the tenant's share beside others, 1 or more."""

    @property
    def is_scored(self) -> bool:
        """Return whether the prompt's log-probabilities are still to be told: with output, an earlier attempt did."""
        return self.params.num_prompt_logprobs is not None and not self.output_token_ids


def check_request(request: EngineRequest, info: ModelInfo) -> None:
    """Check a request against a model; raise InvalidFieldError naming the first field that cannot be served."""
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    if not request.prompt_token_ids:
        raise InvalidFieldError("prompt_token_ids", "expected 1 token or more")
    if num_tokens >= info.max_context_tokens:
        raise InvalidFieldError(
            "prompt_token_ids", f"{num_tokens} tokens leave no room in a context of {info.max_context_tokens}"
        )
    for token_id in (*request.prompt_token_ids, *request.output_token_ids):
        if not 0 <= token_id < info.vocabulary_size:
            raise InvalidFieldError(
                "prompt_token_ids", f"token id {token_id} is not in 0 to {info.vocabulary_size - 1}"
            )
    request.params.check(info.vocabulary_size)
    if request.is_scored and request.purpose is not Purpose.GENERATE:
        raise InvalidFieldError("prompt_logprobs", "expected a prompt that is computed on the node that generates")
    if (request.params.structured_output is None) != (request.constraint is None):
        raise InvalidFieldError("structured_output", "this node has not compiled it and cannot enforce it")
