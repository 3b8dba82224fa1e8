"""What follows where a KV stream breaks: nothing more, another stream, or the rest computed here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from baton.capacity import cost
from baton.capacity.cost import CostEstimate
from baton.decode.kv_stream.reader import MovingTimeout, SilentStreamError
from baton.internal.v1.kv_pb2 import TransferGrant
from baton.kv.stream import KvProgress
from baton.node.node import WorkerNode

MAX_STREAMS_PER_NODE = 2
"""Streams of one request that a node is asked for."""


class Recovery(StrEnum):
    """What took over from a broken stream."""

    SAME_NODE = "same_node"
    OTHER_NODE = "other_node"
    COMPLETE = "complete"
    """Nothing: all KV had come and proven its place, only the summary was missing."""
    LOCAL = "local"
    """The decode node: it computes what is missing."""


@dataclass(frozen=True, slots=True)
class PrefillOption:
    """A prefill node that may be asked."""

    node_id: str
    layers_per_frame: int = 0
    """Layers of one frame; 0: the node decides."""
    chunk_tokens: int = 0
    """Positions computed in one pass at most; 0: the node decides."""
    wire_dtype: int = 0
    """KvDtype of kv.proto of K; 0: that of the cache."""
    value_wire_dtype: int = 0
    """That of V; 0: that of K."""
    transfer: TransferGrant = field(default_factory=TransferGrant)
    """What the router has granted of its KV."""
    estimate: CostEstimate | None = None
    """What the router expected of it for the whole prompt; None: unknown, it is worth a try."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A request whose KV stream has just broken."""

    option: PrefillOption
    is_node_in_doubt: bool
    """Whether the node, and not the stream alone, may have failed: others are asked before it."""
    is_node_unfit: bool
    """Whether the node has refused, or hangs: it is not asked again."""
    num_streams_by_node: dict[str, int]
    progress: KvProgress
    token_begin: int
    """First position that the decode node lacked at first."""
    has_first_token: bool
    is_cache_bypassed: bool
    """Whether nodes keep nothing of what they have computed of the prompt."""


def choose_option(
    broken: Broken, alternatives: Sequence[PrefillOption], *, local_seconds: float, seconds_left: float | None
) -> PrefillOption | None:
    """Return the node to be asked for the rest; None: computing it here is cheaper, or nobody is left.

    `alternatives` are in order of preference; the caller gives up after `seconds_left`, None: never.
    """
    same: tuple[PrefillOption, ...] = () if broken.is_node_unfit else (broken.option,)
    others = tuple(option for option in alternatives if option.node_id != broken.option.node_id)
    order: tuple[PrefillOption, ...] = (*others, *same) if broken.is_node_in_doubt else (*same, *others)
    for option in order:
        if broken.num_streams_by_node.get(option.node_id, 0) >= MAX_STREAMS_PER_NODE:
            continue
        seconds = resume_seconds(broken, option)
        if seconds < local_seconds and (seconds_left is None or seconds < seconds_left):
            return option
    return None


def resume_seconds(broken: Broken, option: PrefillOption) -> float:
    """Return the time until the rest of the KV is here, if a node is asked for it; 0 where the router said nothing.

    The node that sent the broken stream still has, in its prefix cache, what it had computed; another one has to
    compute the prompt as the router expected. What is sent hides behind what is computed, or the other way round.
    """
    estimate, progress = option.estimate, broken.progress
    if estimate is None:
        return 0.0
    computing = estimate.prefill_seconds
    if option.node_id == broken.option.node_id and not broken.is_cache_bypassed:
        computing *= 0.0 if broken.has_first_token else _share_missing(progress.complete_tokens, broken)
    mean_next_token = sum(progress.next_tokens) / len(progress.next_tokens)
    sending = estimate.transfer_seconds * _share_missing(mean_next_token, broken)
    calling = max(0.0, estimate.time_to_first_token_seconds - estimate.prefill_seconds)
    return calling + max(computing, sending)


def _share_missing(next_token: float, broken: Broken) -> float:
    num_tokens = broken.progress.num_tokens
    return (num_tokens - next_token) / (num_tokens - broken.token_begin)


LOCAL_MARGIN = 1.5
"""Times as long as expected that computing the rest here may take, where a deadline is near."""


def local_seconds(node: WorkerNode, start: int, num_tokens: int) -> float:
    """Return the time in which this node computes positions [start, num_tokens), behind the prompts that it has."""
    load, shape = node.engine.load(), node.runner.info.shape
    backlog = cost.backlog_seconds(shape, node.profile, load.num_pending_prompt_tokens, load.num_waiting)
    return backlog + cost.prefill_seconds(shape, node.profile, start, num_tokens, node.settings.max_step_tokens)


class DeadlineGuard(MovingTimeout):
    """Breaks a stream at the last moment at which the rest can still be computed here, seen from how far it is then.

    Where that moment has passed already, the stream is the only hope, and goes on. `deadline` is the event loop's time
    at which the caller gives the request up.
    """

    def __init__(self, deadline: float, rest_seconds: Callable[[], float]) -> None:
        super().__init__(lambda: deadline - LOCAL_MARGIN * rest_seconds())

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)
        except TimeoutError:  # the guard's own: what the stream raises passes as it is
            problem = "the stream left no more time than the rest takes here"
            raise SilentStreamError(problem, reason="DEADLINE") from None
