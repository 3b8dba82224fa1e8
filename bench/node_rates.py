"""What nodes can do by formula: from the size of the model and the speed that a node declares (a mock: its preset).

METHODOLOGY.md has the formulas; they are those of docs/placement.md, written again, since a benchmark is a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from baton.internal.v1.node_pb2 import NODE_ROLE_PREFILL, NodeDescription


@dataclass(frozen=True, slots=True)
class NodeRates:
    """One node on its model. All rates are above 0."""

    node_id: str
    can_decode: bool
    """Whether it generates; a prefill node does not."""
    prefill_flops: float
    """Rate of prefill, FLOP/s."""
    prefill_overhead_seconds: float
    decode_flops: float
    """Rate of arithmetic in decode steps, FLOP/s."""
    decode_bytes_per_second: float
    """Rate of memory reads in decode steps."""
    step_overhead_seconds: float
    num_linear_parameters: int
    """That multiply every token."""
    num_head_parameters: int
    """Of the output projection."""
    attention_flop_per_pair: float
    """Operations of a query and a key over all layers."""
    weight_bytes: int
    kv_bytes_per_token: int
    """Of all layers."""
    max_pass_tokens: int
    """Positions that it computes in a pass; 0: not known."""
    max_batch_size: int
    """Sequences decoded together at most."""
    num_pool_tokens: int

    def prefill_seconds(self, num_tokens: float) -> float:
        """Return the time of a prompt of which nothing is cached; every pass reads the weights at least."""
        flop = 2.0 * self.num_linear_parameters * num_tokens + 2.0 * self.num_head_parameters
        flop += self.attention_flop_per_pair * num_tokens**2 / 2
        num_passes = ceil(num_tokens / (self.max_pass_tokens or num_tokens))
        reading_seconds = num_passes * self.weight_bytes / self.decode_bytes_per_second
        return max(flop / self.prefill_flops, reading_seconds) + self.prefill_overhead_seconds

    def step_seconds(self, batch_size: float, context_tokens: float) -> float:
        """Return the time of a decode step."""
        num_bytes = self.weight_bytes + batch_size * context_tokens * self.kv_bytes_per_token
        linear = 2.0 * (self.num_linear_parameters + self.num_head_parameters)
        flop = batch_size * (linear + self.attention_flop_per_pair * context_tokens)
        return max(num_bytes / self.decode_bytes_per_second, flop / self.decode_flops) + self.step_overhead_seconds

    def full_batch(self, context_tokens: float) -> int:
        """Return the most sequences of such a length that it decodes together, 1 or more."""
        return max(1, min(self.max_batch_size, int(self.num_pool_tokens // context_tokens)))

    def decode_seconds(self, num_prompt_tokens: float, num_output_tokens: float) -> float:
        """Return what the output of a request takes of a node whose batch is full; the prompt gives the first token."""
        batch = self.full_batch(num_prompt_tokens + num_output_tokens)
        step = self.step_seconds(batch, num_prompt_tokens + num_output_tokens / 2)
        return max(0.0, num_output_tokens - 1) * step / batch


def rates_of(node: NodeDescription) -> NodeRates:
    """Return what a node declares or has measured of itself."""
    shape, profile = node.model_shape, node.profile
    return NodeRates(
        node_id=node.node_id,
        can_decode=node.role != NODE_ROLE_PREFILL,
        prefill_flops=profile.prefill_flops,
        prefill_overhead_seconds=profile.prefill_overhead.ToNanoseconds() / 1e9,
        decode_flops=profile.decode_flops,
        decode_bytes_per_second=profile.decode_bytes_per_second,
        step_overhead_seconds=profile.step_overhead.ToNanoseconds() / 1e9,
        num_linear_parameters=shape.linear_parameter_count,
        num_head_parameters=shape.head_parameter_count,
        attention_flop_per_pair=4.0 * shape.attention_head_count * shape.head_dim * shape.layer_count,
        weight_bytes=shape.weight_byte_count,
        kv_bytes_per_token=shape.kv_byte_count_per_token,
        max_pass_tokens=node.max_step_token_count,
        max_batch_size=node.max_batch_size,
        num_pool_tokens=node.block_count * node.block_token_count,
    )


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Work that arrives per second of time that there is, of each part; at 1 its queue grows without end."""

    prefill: float
    """Of the node that computes prompts."""
    link: float
    """Of the link between the nodes; 0: its rate is not known."""
    decode: float
    """Of the node that generates, its batch being full."""


def pair_utilisation(
    prefiller: NodeRates,
    decoder: NodeRates,
    link_bytes_per_second: float,
    per_second: float,
    num_prompt_tokens: int,
    num_output_tokens: int,
) -> Utilisation:
    """Return the utilisation of a pair where one node computes every prompt and the other generates everything."""
    num_bytes = num_prompt_tokens * prefiller.kv_bytes_per_token
    return Utilisation(
        prefill=per_second * prefiller.prefill_seconds(num_prompt_tokens),
        link=per_second * num_bytes / link_bytes_per_second if link_bytes_per_second > 0 else 0.0,
        decode=per_second * decoder.decode_seconds(num_prompt_tokens, num_output_tokens),
    )


def capacity_per_second(nodes: Sequence[NodeRates], num_prompt_tokens: float, num_output_tokens: float) -> float:
    """Return the most requests per second that the nodes can serve by formula, links and caches left aside.

    Each decode node splits its time between output and prompts. Decoding goes first to the nodes that lose the least
    prefill by it; the rate is the one at which what is left computes just as many prompts (bisection). Raises
    ValueError if no node generates.
    """
    decoders = [node for node in nodes if node.can_decode]
    if not decoders:
        raise ValueError("no node generates")
    prompt = {node.node_id: node.prefill_seconds(num_prompt_tokens) for node in nodes}
    output = {node.node_id: node.decode_seconds(num_prompt_tokens, num_output_tokens) for node in decoders}
    low, high = 0.0, sum(1 / seconds for seconds in prompt.values())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _can_serve(prompt, output, middle) else (low, middle)
    return low


def _can_serve(prompt: Mapping[str, float], output: Mapping[str, float], per_second: float) -> bool:
    """Return whether nodes can compute and generate so many requests per second; both mappings are seconds by node."""
    to_decode, prompts = per_second, sum(1 / seconds for name, seconds in prompt.items() if name not in output)
    for name in sorted(output, key=lambda name: output[name] / prompt[name]):
        share = min(1.0, to_decode * output[name])
        to_decode -= share / output[name] if output[name] > 0 else to_decode
        prompts += (1 - share) / prompt[name]
    return to_decode <= 1e-9 * per_second and prompts >= per_second
