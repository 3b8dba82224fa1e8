"""In what number formats two registered nodes can exchange KV."""

from __future__ import annotations

from baton.capacity.wire import WireAbility, WireOption
from baton.kv.layout import KvDtype, KvLayout, WireFormat
from baton.kv.wire import token_bytes, wire_dtypes
from baton.router.records import NodeDescription


def wire_options(prefiller: NodeDescription, decoder: NodeDescription) -> tuple[WireOption, ...]:
    """Return what both can do with this cache, its own format first; losses are those that the sender measured."""
    layout = decoder.layout
    senders = {ability.dtype: ability for ability in prefiller.wire_abilities}
    receivers = {ability.dtype: ability for ability in decoder.wire_abilities}
    own, *narrower = wire_dtypes(layout)
    keys, values = token_bytes(layout, WireFormat(own, own))
    options = [WireOption(own.value, keys, values)]
    for dtype in narrower:
        sender, receiver = senders.get(dtype.value), receivers.get(dtype.value)
        if sender is not None and receiver is not None:
            options.append(_option(layout, dtype, sender, receiver))
    return tuple(options)


def _option(layout: KvLayout, dtype: KvDtype, sender: WireAbility, receiver: WireAbility) -> WireOption:
    wire, cache = (
        token_bytes(layout, WireFormat(dtype, dtype)),
        token_bytes(layout, WireFormat(layout.dtype, layout.dtype)),
    )
    seconds_per_byte = 1 / min(sender.pack_bytes_per_second, receiver.unpack_bytes_per_second)
    return WireOption(
        dtype.value,
        wire.keys,
        wire.values,
        key_pack_seconds=cache.keys * seconds_per_byte,
        value_pack_seconds=cache.values * seconds_per_byte,
        key_loss=sender.key_loss,
        value_loss=sender.value_loss,
    )
