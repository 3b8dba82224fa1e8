"""What nodes can be asked for, between NodeRole of node.proto and the word after `baton serve`."""

from __future__ import annotations

from collections.abc import Mapping

from baton.capacity.snapshot import NodeRole, can_decode, can_prefill
from baton.errors import InvalidFieldError
from baton.internal.v1 import node_pb2

_ROLES: Mapping[NodeRole, node_pb2.NodeRole] = {
    "prefill": node_pb2.NODE_ROLE_PREFILL,
    "decode": node_pb2.NODE_ROLE_DECODE,
    "worker": node_pb2.NODE_ROLE_WORKER,
}
_WORDS: Mapping[int, NodeRole] = {number: word for word, number in _ROLES.items()}


def role_to_proto(role: NodeRole) -> node_pb2.NodeRole:
    """Return a role's number."""
    return _ROLES[role]


def role_from_proto(number: int, *, field: str) -> NodeRole:
    """Return a role's word; raise InvalidFieldError if the number is no role; the message names the field."""
    if number not in _WORDS:
        raise InvalidFieldError(field, f"expected a NodeRole, got {number}")
    return _WORDS[number]


def role_word(number: int) -> str:
    """Return a role's word for people; "?" for one that this version does not know."""
    return _WORDS.get(number, "?")


def parts_words(number: int) -> str:
    """Return which parts a node may play, for people: "any", or the one that it is pinned to."""
    return "any" if number == node_pb2.NODE_ROLE_WORKER else role_word(number)


def prefills(node: node_pb2.NodeDescription) -> bool:
    """Return whether a node computes prompts for others."""
    return node.role in _WORDS and can_prefill(_WORDS[node.role])


def decodes(node: node_pb2.NodeDescription) -> bool:
    """Return whether a node generates."""
    return node.role in _WORDS and can_decode(_WORDS[node.role])
