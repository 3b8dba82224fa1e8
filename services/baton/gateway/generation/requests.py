"""What both APIs ask of the gateway's core, and what it answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from baton.capacity.objectives import Objectives
from baton.capacity.snapshot import NodePair
from baton.errors import InvalidFieldError
from baton.gateway.generation.tools import ToolUse
from baton.gateway.models.served_model import ModelText
from baton.internal.v1.router_service_pb2 import Placement
from baton.kv.hashing import Adapter
from baton.text.tokenizer import Message
from baton.text.tools import Tool
from baton.v1.generation_pb2 import PlacementSummary, SamplingParameters, TokenLogprob

STRUCTURED_OUTPUT = "structured_output"
"""The core's name of the field that constrains the output."""

EndReason = Literal["stop", "length"]
"""Why a generation ended, in OpenAI's words."""


class TextPrompt(NamedTuple):
    """Plain text; no template is applied."""

    text: str
    add_special_tokens: bool = True
    """Whether the tokenizer adds its own, such as a beginning of sequence."""


class ChatPrompt(NamedTuple):
    """A conversation for the model's chat template."""

    messages: tuple[Message, ...]
    """1 or more."""
    add_generation_prompt: bool = True
    """Whether the beginning of an answer follows."""
    continue_final_message: bool = False
    """Whether the last message is left open, to be continued; instead of a beginning."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds its own beside those of the template."""
    tools: tuple[Tool, ...] = ()
    template_variables: Mapping[str, object] = {}
    """Further variables of the template."""


class TokenPrompt(NamedTuple):
    """Tokens as they are."""

    token_ids: Sequence[int]


Prompt: TypeAlias = TextPrompt | ChatPrompt | TokenPrompt


def client_name(field: str, names: Mapping[str, str]) -> str:
    """Return what a client calls a field, given names of fields, or of what they are a part of."""
    whole = _WHOLE.match(field)
    assert whole is not None
    return names.get(field) or names.get(whole[0], whole[0]) + field[whole.end() :]


_WHOLE = re.compile(r"[^.[]*")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it."""

    request_id: str
    """Unique name, in logs and traces on every node; at most 120 characters."""
    model: str
    """Served name, the model's own or an adapter's."""
    prompt: Prompt
    sampling: SamplingParameters
    """How tokens are chosen; an unset seed is drawn by the gateway."""
    stop: tuple[str, ...] = ()
    """Strings that end the generation and are cut from it."""
    is_stop_shown: bool = False
    """Whether the text ends with what stopped it: the stop string, or the text of a stop token that has one."""
    bad_words: tuple[str, ...] = ()
    """Texts that cannot be generated, at the beginning of a word or not."""
    cache_salt: str = ""
    """Separates prefix caches."""
    priority: int = 0
    """Where requests wait: lower comes earlier; -100 to 100."""
    timeout_seconds: float | None = None
    """Time until the client gives up; None: as long as the gateway allows."""
    session: bytes = b""
    """Names what requests with a common beginning belong to, at most 32 bytes; empty: nothing."""
    bypass_prefix_cache: bool = False
    """Whether no node may read or fill its prefix cache."""
    pins: tuple[NodePair, ...] = ()
    """The only pairs of nodes that may be chosen; none: any."""
    is_output_dropped: bool = False
    """Whether the prompt is all: the one token that a generation has at least is not told."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """What the client's API calls the fields that have another name there, for errors; `structured_output` stands for
    all that is below it.
    """
    default_max_tokens: int | None = None
    """Token limit where `sampling` has none, cut to the context; None: the whole context."""
    tool_use: ToolUse | None = None
    """Tools, for answers that are read for calls and reasoning; None: the text of the answer is all."""

    def in_words_of_client(self, error: InvalidFieldError) -> InvalidFieldError:
        """Return an error with the name that the client knows its field by."""
        names = self.field_names
        if names.get(error.field) or not error.field.startswith(STRUCTURED_OUTPUT):
            name = client_name(error.field, names)
        elif not (name := names.get(STRUCTURED_OUTPUT, "")):  # it is the grammar of calls
            name = names.get("tools", "tools") if self.tool_use and self.tool_use.offered else error.field
        return error if name == error.field else error.renamed(name)


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request that can be placed."""

    request: GenerationRequest
    token_ids: Sequence[int]
    """Tokens of the prompt, 1 or more."""
    block_hashes: bytes
    """Chained block hashes of the prompt, joined."""
    block_tokens: int
    model_id: str
    text: ModelText
    """The model's tokenizer and formats."""
    adapter: Adapter | None
    """What is computed besides the model; None: nothing."""
    model_revision_digest: str
    """Revision that the hashes are for, that of the adapter included."""
    sampling: SamplingParameters
    """With seed and token limit filled in."""
    end_token_ids: frozenset[int]
    """Tokens that end the generation and are not part of its text."""
    arrival_seconds: float
    """When the request came, by the event loop's clock."""
    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens whose names are part of the text, because a parser needs them."""
    is_in_reasoning: bool = False
    """Whether the prompt ends with the mark that opens the model's reasoning."""


@dataclass(slots=True)
class GenerationState:
    """One generation: what is continued and how, and what it has come to; outlives its attempts."""

    name: str
    prompt: PreparedPrompt
    sampling: SamplingParameters
    begun_seconds: float
    """Event loop's time at which the generation began."""
    tenant: str = ""
    """Name of the API key that it is for; empty without keys."""
    tenant_id: str = ""
    """By what nodes tell it from others."""
    tenant_weight: int = 1
    objectives: Objectives = Objectives()
    """What the client wants of its latency."""
    priority: int = 0
    """Whose turn it is; lower is earlier."""
    output_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt from its second token on, if they are wanted."""
    failed_node_ids: list[str] = field(default_factory=list)
    num_attempts: int = 0
    num_free_attempts: int = 0
    """Of those, how many ended through no fault of the request's, and do not count."""
    num_resumed_tokens: int = 0
    """Tokens that were there when the last attempt began."""
    is_suspect: bool = False
    """Whether it may have ended a process: its next attempt is computed alone."""
    num_falls: int = 0
    """Passes and processes that had ended with it, or its equals, when its attempt began."""
    is_blamed: bool = False
    """Whether a pass failed that was its alone: what caches have of it is not used."""
    placement: Placement | None = None
    num_expected_cached_tokens: int = 0
    """Prompt tokens that the router expected in a prefix cache of the last placement."""
    degraded_max_tokens: int = 0
    """Output tokens to which the router has cut the generation; 0: it has not."""
    wants_kv_timeline: bool = False
    """Whether the node shall tell when each KV frame came."""

    def cut(self, max_tokens: int) -> None:
        """Take fewer output tokens than were asked for: the request's own sampling stays as it is."""
        sampling = SamplingParameters()
        sampling.CopyFrom(self.sampling)
        sampling.max_token_count = max_tokens
        sampling.min_token_count = min(sampling.min_token_count, max_tokens)
        self.sampling, self.degraded_max_tokens = sampling, max_tokens


class Delta(NamedTuple):
    """Output that is new."""

    text: str
    """Complete characters; may be empty while a character or a stop string is incomplete."""
    token_ids: Sequence[int]
    """Tokens, one that ends the generation included, although it has no text."""
    logprobs: Sequence[TokenLogprob]
    """One per token if asked for, else empty."""


class PromptLogprobs(NamedTuple):
    """A prompt as the model judged it."""

    first_token_id: int
    """The first token: there is nothing to judge it by."""
    logprobs: Sequence[TokenLogprob]
    """One for each of the others."""


class GenerationResult(NamedTuple):
    """How one generation ended; the last element of its stream."""

    reason: EndReason
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens whose KV came from a prefix cache."""
    num_completion_tokens: int
    seed: int
    num_attempts: int
    summary: PlacementSummary
    """Where it ran, measured; only the ids are set where a stop string cut the generation short."""
    stop: str | None = None
    """The stop string that ended the text, if one did."""
    num_reasoning_tokens: int | None = None
    """Tokens of the reasoning; None: not known."""
    prompt: PromptLogprobs | None = None
    """The prompt's tokens and their log-probabilities; None: not asked for."""
    degraded_max_tokens: int = 0
    """Output tokens to which an overloaded cluster cut the request; 0: it was not cut."""
