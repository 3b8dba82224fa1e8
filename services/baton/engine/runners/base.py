"""The contract between the engine and a framework.

A runner owns the weights and the memory of the KV blocks, nothing else: which block belongs to whom is the scheduler's
business. All calls come from one thread, the engine's. Positions of a sequence live in blocks: position `p` is element
`p % block_tokens` of block `block_table[p // block_tokens]`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from baton.capacity.cost import AttentionElements, ModelShape
from baton.engine.runners.drawing import NOT_FINITE as NOT_FINITE  # for those who read logits
from baton.engine.runners.drawing import Draws, draw_tokens
from baton.errors import MismatchError
from baton.kv.hashing import Adapter, adapted_revision
from baton.kv.kv_format import KvDtype, KvLayout, WireCodec
from baton.kv.numpy_codec import NumpyCodec, split_blocks

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
"""A float32 array."""


class LayerKv(NamedTuple):
    """K and V of one layer and consecutive positions, as C-ordered little-endian bytes in the cache's dtype."""

    keys: bytes | memoryview
    """[num_kv_heads, num_tokens, key_head_dim]."""
    values: bytes | memoryview
    """[num_kv_heads, num_tokens, value_head_dim]."""


BlockKv: TypeAlias = Sequence[LayerKv]
"""K and V of a block, layer by layer."""


LayerSink: TypeAlias = Callable[[int, LayerKv], None]
"""Takes a layer's K and V, of the positions of the span that were computed, the moment they are on the host.

Called in order of layers, from the engine thread, before the pass gives its tokens; must not block. The buffers are the
sink's to keep. Of a layer that keeps a state the keys have it, once: after the span that ends a prompt.
"""


class BlockCopies:
    """Whole blocks on their way to the host. Used by one thread, any.

    `layers` return each layer's K and V, [num_kv_heads, num_blocks * block_tokens, head_dim], when they are there;
    `wait` waits until the device has copied all, behind the passes before.
    """

    def __init__(
        self,
        layers: Sequence[Callable[[], LayerKv]],
        layout: KvLayout,
        num_blocks: int,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        self._layers, self._specs, self._num_blocks = layers, layout.layers, num_blocks
        self.wait = wait

    def blocks(self) -> list[BlockKv]:
        """Return the blocks, each in memory of its own."""
        layers = []
        for take, spec in zip(self._layers, self._specs, strict=True):
            halves = (split_blocks(half, spec.num_kv_heads, self._num_blocks) for half in take())
            layers.append([LayerKv(*block) for block in zip(*halves, strict=True)])
        return list(zip(*layers, strict=True))


class StateSave(NamedTuple):
    """A copy of a sequence's state that a span leaves."""

    end: int
    """Positions after which it is, of the span."""
    slot: int


class StateSpan(NamedTuple):
    """Where the state of a span's sequence lies, in layers that keep one."""

    source: int | None
    """Slot with the state before the span; None: there is none before position 0."""
    slot: int
    """Slot that has it after the span."""
    saves: tuple[StateSave, ...] = ()
    """Copies to leave, in order of positions."""


UNKNOWN_TOKEN = -1
"""Stands for a token that a pass under way chooses."""


class Span(NamedTuple):
    """Consecutive positions of one sequence that a forward pass computes.

    Interval table: [0, start) has its KV in the blocks already; [start, start + len(token_ids)) is computed and
    written here.
    """

    token_ids: Sequence[int]
    """Tokens to feed, 1 or more."""
    start: int
    block_table: Sequence[int]
    """Blocks of the sequence; covers at least start + len(token_ids) positions."""
    needs_logits: bool
    """Whether the logits after the last token are wanted."""
    logits_from: int | None = None
    """With `needs_logits`: first position of the span after which logits are wanted; None: the last one."""
    layer_sink: LayerSink | None = None
    """Where to hand K and V of each layer, if they go on the wire."""
    follows_row: int | None = None
    """Row of the pass before, of whose last step the chosen token is fed; `token_ids` is then `UNKNOWN_TOKEN` alone."""
    adapter: str = ""
    """Name of the adapter with which it is computed; empty: the model alone."""
    state: StateSpan | None = None
    """With layers that keep a state: where it lies."""

    @property
    def end(self) -> int:
        """Return the position after the last one computed."""
        return self.start + len(self.token_ids)

    @property
    def first_logits_position(self) -> int:
        """Return the first position after which logits are wanted; `end` if none are."""
        if not self.needs_logits:
            return self.end
        return self.end - 1 if self.logits_from is None else self.logits_from

    @property
    def num_logits(self) -> int:
        """Return the rows of logits that the span asks for."""
        return self.end - self.first_logits_position


class Logits(Protocol):
    """Logits of a forward pass: a row per position that asked for them, in order of spans and positions."""

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals).

        `NOT_FINITE` where the highest logit is not a finite number; NaN counts as the highest.
        """

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32. The caller may not write."""


class Launched(Protocol):
    """A pass, or several in a row, under way. Every method waits for what it returns, and may be called again."""

    def tokens(self, step: int = 0) -> list[int]:
        """Return the token chosen from each row of a step; `NOT_FINITE` as `Logits.argmax` says."""

    def logits(self) -> Logits:
        """Return the logits of the only step."""

    def cut(self, num_steps: int) -> int:
        """Ask for no more than some steps, 1 or more; return how many will have been computed: as many, or more."""


class ComputedPass:
    """A pass that is computed: tokens are chosen when somebody asks; `draws` are those of `Runner.launch`."""

    def __init__(self, logits: Logits, draws: Draws | None) -> None:
        self._logits, self._draws = logits, draws
        self._tokens: list[int] | None = None

    def tokens(self, step: int = 0) -> list[int]:  # noqa: ARG002 - there is one
        """Return the token chosen from each row."""
        if self._tokens is None:
            draws, logits = self._draws, self._logits
            self._tokens = logits.argmax() if draws is None else draw_tokens(logits.rows(), draws)
        return self._tokens

    def logits(self) -> Logits:
        """Return the logits."""
        return self._logits

    def cut(self, num_steps: int) -> int:  # noqa: ARG002 - there is one
        """Return 1: the pass is computed."""
        return 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of Baton must know about a loaded model."""

    layout: KvLayout
    num_linear_parameters: int
    """Parameters that multiply every token: projections of all layers (active ones for mixtures of experts)."""
    num_head_parameters: int
    num_attention_heads: int
    head_dim: int
    weight_bytes: int
    """Bytes read in a decode step at batch 1."""
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    engine: str
    """"torch", "mlx" or "mock"."""
    device: str
    accelerator_id: str = ""
    """Accelerator that computes, as every process of its machine names it; empty: none does."""
    adapters: tuple[Adapter, ...] = ()
    """What is loaded besides the model; no two have one name."""
    attention_elements: AttentionElements = AttentionElements()
    """As ModelShape has it."""

    def layout_with(self, adapter: str) -> KvLayout:
        """Return the cache's layout with an adapter, by name; empty: none. Raises MismatchError if it is not loaded."""
        if not adapter:
            return self.layout
        for known in self.adapters:
            if known.name == adapter:
                revision = adapted_revision(self.layout.model_revision_digest, known.digest)
                return replace(self.layout, model_revision_digest=revision)
        names = ", ".join(known.name for known in self.adapters)
        raise MismatchError("adapter", names or "none", adapter, reason="MODEL_MISMATCH")

    @property
    def shape(self) -> ModelShape:
        """Return the size of the model, as the cost formulas need it."""
        return ModelShape(
            num_layers=self.layout.num_layers,
            num_linear_parameters=self.num_linear_parameters,
            num_head_parameters=self.num_head_parameters,
            num_attention_heads=self.num_attention_heads,
            num_kv_heads=max(spec.num_kv_heads for spec in self.layout.layers),
            head_dim=self.head_dim,
            weight_bytes=self.weight_bytes,
            kv_bytes_per_token=self.layout.num_token_bytes(),
            max_context_tokens=self.max_context_tokens,
            vocabulary_size=self.vocabulary_size,
            attention_elements=self.attention_elements,
            state_bytes=self.layout.num_state_bytes(),
        )


class Runner(ABC):
    """Runs a model over spans of sequences whose KV lives in numbered blocks."""

    info: ModelInfo
    block_tokens: int
    num_blocks: int
    """Blocks in the pool; ids are 0 to num_blocks - 1."""
    num_state_slots: int = 0
    """Slots, each with the state of one sequence in all layers that keep one; ids are 0 to num_state_slots - 1."""
    num_blocks_cause: str = ""
    """Why so many, in words; empty: whoever made the runner says no more."""
    untaken_bytes: int = 0
    """Main memory that blocks and passes will come to take, and that the process does not have yet."""
    runs_ahead: bool = False
    """Whether `launch` returns before the pass is computed, so that the host may work meanwhile."""
    look_seconds: float = math.inf
    """After how long, while one rests beside a pass, `is_over` is worth a look; infinity: the device does not tell."""
    max_launch_steps: int = 1
    """Passes that one `launch` of spans without an adapter may run."""
    wire_codec: WireCodec = NumpyCodec()
    """Turns what `read_kv` and sinks give into the number formats of a wire, and back. Not bound to the thread."""

    @abstractmethod
    def forward(self, spans: Sequence[Span]) -> Logits:
        """Compute spans of different sequences in one pass and write their KV into their blocks.

        The result of a span does not depend on its neighbours (in float32, to rounding), with one exception: a block
        table may begin with blocks that spans before it in the list write in this pass; then it reads what they write.
        Layer sinks are called during the pass. In the last layer's attention and MLP only positions whose logits are
        wanted are computed.
        """

    def is_over(self, launched: Launched) -> bool:  # noqa: ARG002 - told by devices that can
        """Return whether a pass is known to be over, all of its steps; never waits."""
        return False

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> Launched:
        """Begin a pass as `forward` computes it, choose a token from every row of its logits, and return.

        What a runner is asked for takes effect in the order in which it was asked: passes run one after the other, and
        K and V are read, copied and written behind every pass launched before. So a block may change hands while a
        pass that writes it is under way.

        Spans have a layer sink only where the caller asks for the tokens before it launches another pass. `draws`: how
        tokens are chosen, one row each; None: the most probable ones. `after`: the pass launched before, if a span has
        `follows_row`; a row of it that is not finite counts as 0. `num_steps`: passes to run, 1 to `max_launch_steps`:
        each after the first computes the next position of every span, from the token chosen. With more than one, every
        span has one token and needs its logits.

        This implementation computes one pass before it returns.
        """
        assert num_steps == 1, "this runner launches one pass at a time"
        return ComputedPass(self.forward(with_known_tokens(spans, after.tokens() if after else None)), draws)

    @abstractmethod
    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""

    def settle(self) -> None:  # noqa: B027 - most need not
        """Wait for what is under way, where a write would wait for it: that is no part of the write's time."""

    @abstractmethod
    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of positions [start, start + num_tokens) of one layer, in the cache's dtype, into blocks."""

    @abstractmethod
    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer; empty ones if it keeps a state."""

    def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
        """Begin to copy whole blocks to the host, as they are behind every pass launched before.

        This implementation reads them before it returns.
        """
        layout, num_tokens = self.info.layout, len(block_ids) * self.block_tokens
        read = [self.read_kv(block_ids, layer, 0, num_tokens) for layer in range(layout.num_layers)]
        return BlockCopies([partial(LayerKv, *kv) for kv in read], layout, len(block_ids))

    def write_state(self, slot: int, layer: int, data: bytes | memoryview) -> None:
        """Write a layer's state, in float32, its tensors one after the other as the layout has them."""
        raise NotImplementedError

    def peak_device_bytes(self) -> int:
        """Return the most memory of the device in use so far; 0 where it is the process's own. From any thread."""
        return 0

    def release_spare_memory(self) -> None:  # noqa: B027 - most keep none
        """Give memory back to the system that has been freed and is kept for reuse."""

    @abstractmethod
    def close(self) -> None:
        """Free the model and the blocks."""


def with_known_tokens(spans: Sequence[Span], tokens: Sequence[int] | None) -> Sequence[Span]:
    """Return the spans with the tokens that the pass before has chosen, by its rows; None: they follow no pass."""
    if tokens is None:
        return spans
    return [
        span if span.follows_row is None else span._replace(token_ids=(max(tokens[span.follows_row], 0),))
        for span in spans
    ]


def kv_dtype_of(name: str) -> KvDtype:
    """Return the dtype of a name such as "torch.bfloat16" or "float32"; raise ValueError if K and V cannot have it."""
    return KvDtype(name.rpartition(".")[2])
