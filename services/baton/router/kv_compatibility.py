"""Whether, and in what number formats, two registered nodes can exchange KV."""

from __future__ import annotations

from dataclasses import replace

from baton.capacity.kv_transfer import WireAbility, WireOption, WirePolicy
from baton.errors import MismatchError
from baton.kv.kv_format import KvDtype, KvLayout, TokenBytes, WireFormat, holds_exactly, token_bytes, wire_dtypes
from baton.router.nodes import NodeDescription

_FREE = WireAbility("", float("inf"), float("inf"), 0.0, 0.0)
"""Of a node whose cache has the format: it does nothing."""


def mismatch(sender: NodeDescription, decoder: NodeDescription, policy: WirePolicy) -> str:
    """Return why two nodes cannot exchange KV; empty if they can."""
    try:
        decoder.layout.check_matches(sender.layout, is_converted=True)
    except MismatchError as error:
        return f"KV layouts differ in {error.message}"
    theirs, mine = sender.layout.dtype, decoder.layout.dtype
    if theirs is mine:
        return ""
    differ = f"KV layouts differ in dtype: {theirs.value} there, {mine.value} here"
    options = wire_options(sender, decoder)
    if not options:
        return f"{differ}, and the nodes know no format for both"
    if {policy.keys, policy.values} <= {option.dtype for option in options}:
        return ""  # to name a format is to permit its loss
    loss = options[0].key_loss + options[0].value_loss
    if options[0].is_conversion and not (policy.allowed_loss > 0 and loss <= policy.allowed_loss):
        return f"{differ}; rounding to it loses {loss:.3g} nats, allowed are {policy.allowed_loss:g}"
    return ""


def wire_options(sender: NodeDescription, decoder: NodeDescription) -> tuple[WireOption, ...]:
    """Return what both can do with their caches; losses are those that the sender measured.

    The first is the cache's own format, or, between caches of different formats, what converts best. Empty: nothing.
    """
    own, *narrower = wire_dtypes(decoder.layout)
    if sender.layout.dtype is decoder.layout.dtype:
        options: list[WireOption | None] = [_option(sender, decoder, own)]
    else:
        options = [_conversion(sender, decoder)]
        narrower = [dtype for dtype in narrower if dtype in (KvDtype.INT8, KvDtype.FP8)]
    if options[0] is None:
        return ()
    options += [_option(sender, decoder, dtype) for dtype in narrower]
    return tuple(option for option in options if option is not None)


def _conversion(sender: NodeDescription, decoder: NodeDescription) -> WireOption | None:
    """Return how a cache reaches one of another format: exactly in its own where that can be, else in the other's."""
    theirs, mine = sender.layout.dtype, decoder.layout.dtype
    if holds_exactly(mine, theirs):
        option = _option(sender, decoder, theirs)
        return option and replace(option, key_loss=0.0, value_loss=0.0)
    option = _option(sender, decoder, mine)
    return option and replace(option, is_conversion=True)


def _option(sender: NodeDescription, decoder: NodeDescription, dtype: KvDtype) -> WireOption | None:
    """Return a format that both know; None: one does not."""
    packing, unpacking = _ability(sender, dtype), _ability(decoder, dtype)
    if packing is None or unpacking is None:
        return None
    wire = token_bytes(decoder.layout, WireFormat(dtype, dtype))
    sent, received = _cache_bytes(sender.layout), _cache_bytes(decoder.layout)
    return WireOption(
        dtype.value,
        wire.keys,
        wire.values,
        key_pack_seconds=max(
            sent.keys / packing.pack_bytes_per_second, received.keys / unpacking.unpack_bytes_per_second
        ),
        value_pack_seconds=max(
            sent.values / packing.pack_bytes_per_second, received.values / unpacking.unpack_bytes_per_second
        ),
        key_loss=packing.key_loss,
        value_loss=packing.value_loss,
    )


def _ability(node: NodeDescription, dtype: KvDtype) -> WireAbility | None:
    if node.layout.dtype is dtype:
        return _FREE
    return next((ability for ability in node.wire_abilities if ability.dtype == dtype.value), None)


def _cache_bytes(layout: KvLayout) -> TokenBytes:
    return token_bytes(layout, WireFormat(layout.dtype, layout.dtype))
