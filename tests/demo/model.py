"""The hybrid demo model's training forward: what transformers' Qwen3_5ForCausalLM computes, in few kernels.

All matrices lie in one flat float32 tensor, all vectors in another, so that a step rounds, clips and updates them in a
handful of kernels. Rows are whole chunks long, and start without a state. The delta rule is the chunked one
(arXiv:2412.06464, section 3.3); its triangular inverse is built from blocks, which needs no solver and can be captured
in a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from demo.vocabulary import END_ID, NUM_TOKENS, PAD_ID

CHUNK = 64
EPS = 1e-6
CONFIG: dict[str, Any] = {
    "vocab_size": NUM_TOKENS,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": EPS,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
}
"""The text's part of config.json."""

HIDDEN, INNER, LAYERS = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_hidden_layers"]
HEADS, KV_HEADS, HEAD_DIM = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
KEY_HEADS, VALUE_HEADS = CONFIG["linear_num_key_heads"], CONFIG["linear_num_value_heads"]
KEY_DIM, VALUE_DIM = CONFIG["linear_key_head_dim"], CONFIG["linear_value_head_dim"]
KEYS, VALUES, TAPS = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM, CONFIG["linear_conv_kernel_dim"]
ROTARY = int(HEAD_DIM * CONFIG["rope_parameters"]["partial_rotary_factor"])
EMBEDDING = "model.embed_tokens.weight"


def is_linear(layer: int) -> bool:
    """Return whether a layer is a gated delta net; the others attend."""
    return (layer + 1) % CONFIG["full_attention_interval"] != 0


def matrix_shapes() -> dict[str, tuple[int, int]]:
    """Return the name and shape of every matrix, those of one shape beside one another."""
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        if is_linear(layer):
            shapes[prefix + "linear_attn.in_proj_qkv.weight"] = (2 * KEYS + VALUES, HIDDEN)
            shapes[prefix + "linear_attn.in_proj_z.weight"] = (VALUES, HIDDEN)
            shapes[prefix + "linear_attn.out_proj.weight"] = (HIDDEN, VALUES)
            shapes[prefix + "linear_attn.in_proj_b.weight"] = (VALUE_HEADS, HIDDEN)
            shapes[prefix + "linear_attn.in_proj_a.weight"] = (VALUE_HEADS, HIDDEN)
        else:
            shapes[prefix + "self_attn.q_proj.weight"] = (2 * HEADS * HEAD_DIM, HIDDEN)
            shapes[prefix + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
            shapes[prefix + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
            shapes[prefix + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[prefix + "mlp.gate_proj.weight"] = (INNER, HIDDEN)
        shapes[prefix + "mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[prefix + "mlp.down_proj.weight"] = (HIDDEN, INNER)
    shapes[EMBEDDING] = (NUM_TOKENS, HIDDEN)
    return dict(sorted(shapes.items(), key=lambda item: (item[1], item[0].split(".", 3)[-1])))


def vector_shapes() -> dict[str, tuple[int, ...]]:
    """Return the name and shape of everything that is no matrix."""
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (HIDDEN,)
        shapes[prefix + "post_attention_layernorm.weight"] = (HIDDEN,)
        if is_linear(layer):
            shapes[prefix + "linear_attn.conv1d.weight"] = (2 * KEYS + VALUES, 1, TAPS)
            shapes[prefix + "linear_attn.dt_bias"] = (VALUE_HEADS,)
            shapes[prefix + "linear_attn.A_log"] = (VALUE_HEADS,)
            shapes[prefix + "linear_attn.norm.weight"] = (VALUE_DIM,)
        else:
            shapes[prefix + "self_attn.q_norm.weight"] = (HEAD_DIM,)
            shapes[prefix + "self_attn.k_norm.weight"] = (HEAD_DIM,)
    return shapes


MATRICES, VECTORS = matrix_shapes(), vector_shapes()


def views(flat: torch.Tensor, shapes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the named parts of a flat tensor, as views."""
    parts = flat.split([math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


@dataclass(slots=True)
class Weights:
    """All weights: two flat float32 tensors. Invariant: their parts lie as `MATRICES` and `VECTORS` say."""

    matrices: torch.Tensor
    vectors: torch.Tensor

    @classmethod
    def new(cls, device: str) -> "Weights":
        """Return untrained weights; decays as flash-linear-attention's gated delta net draws them."""
        sizes = [sum(math.prod(shape) for shape in shapes.values()) for shapes in (MATRICES, VECTORS)]
        weights = cls(*(torch.zeros(size) for size in sizes))
        for name, part in weights.named().items():
            if name.endswith((".out_proj.weight", ".o_proj.weight", ".down_proj.weight")):
                part.zero_()
            elif name in MATRICES:
                part.normal_(std=0.02 if name == EMBEDDING else 0.5 * HIDDEN**-0.5)
            elif name.endswith("conv1d.weight"):
                part.uniform_(-(TAPS**-0.5), TAPS**-0.5)
            elif name.endswith("A_log"):
                part.uniform_(0.01, 16).log_()
            elif name.endswith("dt_bias"):
                step = torch.exp(torch.rand(VALUE_HEADS) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
                part.copy_(step + torch.log(-torch.expm1(-step)))
            elif name.endswith("linear_attn.norm.weight"):
                part.fill_(1.0)
        return cls(weights.matrices.to(device), weights.vectors.to(device))

    def named(self) -> dict[str, torch.Tensor]:
        """Return every weight by its name in transformers, as views."""
        return views(self.matrices, MATRICES) | views(self.vectors, VECTORS)

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over weights by name."""
        for name, part in self.named().items():
            part.copy_(tensors[name].view(part.shape))


def forward(weights: Weights, tokens: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits, [num_rows * num_tokens, vocabulary], float32.

    Args:
        weights: The weights, of which matrices are rounded to `dtype`.
        tokens: [num_rows, num_tokens], int64; the number of tokens is a multiple of `CHUNK`.
        positions: Of the same shape; what the rotary embedding turns by.
        dtype: What all but the delta rule computes in.
    """
    num_rows, num_tokens = tokens.shape
    matrix, exact = views(weights.matrices.to(dtype), MATRICES), views(weights.vectors, VECTORS)
    rounded = views(weights.vectors.to(dtype), VECTORS)
    offset = views((1 + weights.vectors).to(dtype), VECTORS)
    cos, sin = rotations(positions, dtype)
    one_hot = (tokens.flatten()[:, None] == torch.arange(NUM_TOKENS, device=tokens.device)).to(dtype)
    hidden = one_hot @ matrix[EMBEDDING]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        normed = functional.rms_norm(hidden, (HIDDEN,), offset[prefix + "input_layernorm.weight"], EPS)
        if is_linear(layer):
            part = {
                name.removeprefix(prefix + "linear_attn."): source[name]
                for source, names in ((matrix, MATRICES), (exact, VECTORS))
                for name in names
                if name.startswith(prefix + "linear_attn.")
            }
            part["conv1d.weight"] = rounded[prefix + "linear_attn.conv1d.weight"]
            mixed = delta_net(normed, part, num_rows, num_tokens)
        else:
            mixed = attention(normed, matrix, offset, prefix + "self_attn.", cos, sin)
        hidden = hidden + mixed
        normed = functional.rms_norm(hidden, (HIDDEN,), offset[prefix + "post_attention_layernorm.weight"], EPS)
        gate = functional.silu(normed @ matrix[prefix + "mlp.gate_proj.weight"].T)
        hidden = (
            hidden
            + (gate * (normed @ matrix[prefix + "mlp.up_proj.weight"].T)) @ matrix[prefix + "mlp.down_proj.weight"].T
        )
    normed = functional.rms_norm(hidden, (HIDDEN,), offset["model.norm.weight"], EPS)
    return (normed @ matrix[EMBEDDING].T).float()


def rotations(positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rotary embedding's cosines and sines, [num_rows, 1, num_tokens, ROTARY]."""
    exponents = torch.arange(0, ROTARY, 2, device=positions.device).float() / ROTARY
    angles = positions.float()[:, None, :, None] * CONFIG["rope_parameters"]["rope_theta"] ** -exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attention(
    normed: torch.Tensor,
    matrix: dict[str, torch.Tensor],
    offset: dict[str, torch.Tensor],
    prefix: str,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """Return what a layer of gated attention adds, [num_rows * num_tokens, HIDDEN]."""
    num_rows, _, num_tokens, _ = cos.shape
    shape = (num_rows, num_tokens, -1, HEAD_DIM)
    query, gate = (normed @ matrix[prefix + "q_proj.weight"].T).view(*shape[:3], 2 * HEAD_DIM).chunk(2, -1)
    key = (normed @ matrix[prefix + "k_proj.weight"].T).view(shape)
    value = (normed @ matrix[prefix + "v_proj.weight"].T).view(shape).transpose(1, 2)
    query = functional.rms_norm(query, (HEAD_DIM,), offset[prefix + "q_norm.weight"], EPS).transpose(1, 2)
    key = functional.rms_norm(key, (HEAD_DIM,), offset[prefix + "k_norm.weight"], EPS).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(
        rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
    )
    mixed = mixed.transpose(1, 2) * torch.sigmoid(gate)
    return mixed.reshape(num_rows * num_tokens, -1) @ matrix[prefix + "o_proj.weight"].T


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads, [num_rows, num_heads, num_tokens, HEAD_DIM], their first `ROTARY` numbers turned."""
    turned, rest = heads[..., :ROTARY], heads[..., ROTARY:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


def delta_net(normed: torch.Tensor, part: dict[str, torch.Tensor], num_rows: int, num_tokens: int) -> torch.Tensor:
    """Return what a gated delta net adds, [num_rows * num_tokens, HIDDEN]."""
    num_chunks = num_tokens // CHUNK
    mixed = (normed @ part["in_proj_qkv.weight"].T).view(num_rows, num_tokens, -1)
    mixed = functional.silu(CausalConvolution.apply(mixed, part["conv1d.weight"].squeeze(1)))
    query, key, value = (
        each.view(num_rows, num_chunks, CHUNK, -1, size).transpose(2, 3).float()
        for each, size in zip(mixed.split([KEYS, KEYS, VALUES], -1), (KEY_DIM, KEY_DIM, VALUE_DIM), strict=True)
    )
    # x / sqrt(sum(x * x) + eps) is the RMS norm with eps / n, over sqrt(n); the query is divided by sqrt(n) again
    query = functional.rms_norm(query, (KEY_DIM,), None, EPS / KEY_DIM) / KEY_DIM
    key = functional.rms_norm(key, (KEY_DIM,), None, EPS / KEY_DIM) * KEY_DIM**-0.5
    beta = (normed @ part["in_proj_b.weight"].T).sigmoid()
    step = functional.softplus((normed @ part["in_proj_a.weight"].T).float() + part["dt_bias"])
    decay = -part["A_log"].exp() * step
    beta, decay = (
        each.float().view(num_rows, num_chunks, CHUNK, VALUE_HEADS).transpose(2, 3).contiguous()
        for each in (beta, decay)
    )
    output = delta_rule(query, key, value, beta, decay)
    output = functional.rms_norm(output, (VALUE_DIM,), part["norm.weight"], EPS).transpose(2, 3)
    gate = functional.silu(normed @ part["in_proj_z.weight"].T)
    return (output.reshape(num_rows * num_tokens, VALUES).to(normed.dtype) * gate) @ part["out_proj.weight"].T


def delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """Return the gated delta rule's output, [num_rows, num_chunks, VALUE_HEADS, CHUNK, VALUE_DIM].

    Args:
        query: [num_rows, num_chunks, KEY_HEADS, CHUNK, KEY_DIM], normalised and scaled.
        key: As `query`, normalised.
        value: [num_rows, num_chunks, VALUE_HEADS, CHUNK, VALUE_DIM].
        beta: [num_rows, num_chunks, VALUE_HEADS, CHUNK].
        decay: As `beta`, in log space, at most 0.
    """
    num_rows, num_chunks = beta.shape[:2]
    group = VALUE_HEADS // KEY_HEADS
    passed = decay.cumsum(-1)
    above = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=beta.device).triu(1)
    pairs = (passed[..., :, None] - passed[..., None, :]).masked_fill(above, -math.inf).exp()
    grouped = (num_rows, num_chunks, KEY_HEADS, group, CHUNK, CHUNK)
    flat = (num_rows, num_chunks, VALUE_HEADS, CHUNK, CHUNK)
    key_key = (key @ key.transpose(-1, -2))[:, :, :, None]
    query_key = (query @ key.transpose(-1, -2))[:, :, :, None]
    system = (key_key * (pairs * beta[..., None]).view(grouped)).view(flat)
    attended = (query_key * pairs.view(grouped)).view(flat)
    inverse = TriangularInverse.apply(system) * beta[..., None, :]
    grown = passed.exp()
    keys = key.repeat_interleave(group, 2)
    fresh = inverse @ value
    read = (inverse * grown[..., None, :]) @ keys
    left = passed[..., -1:]
    written = (keys * (left - passed).exp()[..., None]).transpose(-1, -2)
    states, news = scan(fresh, read, written, left.exp()[..., None])
    output = attended @ news
    if num_chunks > 1:
        queries = query.repeat_interleave(group, 2) * grown[..., None]
        output = output + queries @ states
    return output


def scan(
    fresh: torch.Tensor, read: torch.Tensor, written: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state before each chunk and the values that each writes; all have the chunk as second dimension."""
    merged = (-1, CHUNK, CHUNK)
    state = torch.zeros_like(fresh[:, 0]).reshape(merged)
    states, news = [state], []
    chunks = zip(*(each.unbind(1) for each in (fresh, read, written, kept)), strict=True)
    for chunk, (value, key, write, keep) in enumerate(chunks):
        new = (
            value.reshape(merged)
            if chunk == 0
            else torch.baddbmm(value.reshape(merged), key.reshape(merged), state, alpha=-1)
        )
        news.append(new)
        if chunk + 1 < fresh.shape[1]:
            write, keep = write.reshape(merged), keep.reshape(-1, 1, 1)
            state = write @ new if chunk == 0 else torch.baddbmm(state * keep, write, new)
            states.append(state)
    shape = (fresh.shape[0], VALUE_HEADS, CHUNK, CHUNK)
    return tuple(torch.stack([one.view(shape) for one in each], 1) for each in (states, news))  # type: ignore[return-value]


class TriangularInverse(torch.autograd.Function):
    """Inverts I + the strictly lower part of square matrices of CHUNK rows.

    Blocks of 16 rows by (I - L)(I + L^2)(I + L^4)(I + L^8), then twice two blocks to one:
    [[A, 0], [C, B]] has the inverse [[A', 0], [-B' C A', B']].
    """

    BLOCK = 16

    @staticmethod
    def forward(ctx: Any, system: torch.Tensor) -> torch.Tensor:
        """Return the inverses."""
        reduced, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        lower = system.detach().reshape(-1, CHUNK, CHUNK).tril(-1)
        size = TriangularInverse.BLOCK
        power = torch.stack([lower[:, at : at + size, at : at + size] for at in range(0, CHUNK, size)], 1)
        one = torch.eye(size, device=lower.device, dtype=lower.dtype)
        inverse = one - power
        for _ in range(3):
            power = power @ power
            inverse = inverse + inverse @ power
        while size < CHUNK:
            first, second = inverse[:, 0::2], inverse[:, 1::2]
            corner = torch.stack(
                [lower[:, at + size : at + 2 * size, at : at + size] for at in range(0, CHUNK, 2 * size)], 1
            )
            corner = -(second @ (corner @ first))
            top = torch.cat([first, torch.zeros_like(first)], -1)
            inverse = torch.cat([top, torch.cat([corner, second], -1)], -2)
            size *= 2
        torch.backends.cuda.matmul.allow_tf32 = reduced
        inverse = inverse.view(system.shape)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the gradient of the system: - T' G T', its strictly lower part."""
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ gradient @ turned).tril(-1)


class CausalConvolution(torch.autograd.Function):
    """Convolves every channel of [num_rows, num_tokens, channels] with its own taps, [channels, TAPS], causally."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        """Return the outputs; before a row are zeros."""
        ctx.save_for_backward(inputs, taps)
        output = inputs * taps[:, -1]
        for back in range(1, TAPS):
            output[:, back:].addcmul_(inputs[:, :-back], taps[:, -1 - back])
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Return the gradients of inputs and taps."""
        inputs, taps = ctx.saved_tensors
        of_inputs = gradient * taps[:, -1]
        of_taps = [(gradient * inputs).sum((0, 1), dtype=torch.float32)]
        for back in range(1, TAPS):
            of_inputs[:, :-back].addcmul_(gradient[:, back:], taps[:, -1 - back])
            of_taps.insert(0, (gradient[:, back:] * inputs[:, :-back]).sum((0, 1), dtype=torch.float32))
        return of_inputs, torch.stack(of_taps, 1).to(taps.dtype)
