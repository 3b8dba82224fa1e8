"""The rotary embedding that a model folder asks for: kinds that are served, and YaRN as transformers computes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.errors import ConfigurationError

YARN_FAMILIES = (
    *("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"),
    *("gpt_oss", "llama", "ministral3", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"),
)
"""Values of `model_type` whose equality with transformers is tested with YaRN; to phi3, yarn is a name of longrope."""

_ROPE_TYPES = ("default", "linear", "llama3")
"""Kinds of rotary embedding that turn K by its position alone in every family; others may look at the longest position
of a pass, as dynamic and longrope do, and so do su and yarn where they are names of the latter."""
_ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""Keys of the rotary embedding's parameters, in the form of transformers 5 and the older one."""
_ORIGINAL_CONTEXT = "original_max_position_embeddings"
_STRETCHING_ROPE_TYPES = ("llama3", "yarn")
"""Kinds that have an original context."""
_ROPE_THETAS = {"gemma3_text": 1e6, "gemma4_text": 1e6, "lfm2": 1e6, "gpt_oss": 150_000.0, "minimax_m2": 5e6}
_ROPE_THETAS |= {"ministral3": 1e6, "mixtral": 1e6, "smollm3": 2e6}
"""`rope_theta` of the families where a folder that does not name it means another than 10 000."""
_FAST_TURNS = 32.0
_SLOW_TURNS = 1.0
_LEAST_WIDTH = 0.001
"""Of the ramp between kept and stretched pairs, where it would have none."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """A rotary embedding stretched by YaRN: slow pairs are interpolated, fast ones kept, and all are scaled.

    Source: YaRN (arXiv 2309.00071), section 3; the defaults are those of transformers.
    """

    factor: float
    """Context after stretching / before, 1 or more."""
    original_context_tokens: int
    """Context before stretching, above 0."""
    fast_turns: float
    """Pairs that turn more often than this over the original context are kept."""
    slow_turns: float
    """Pairs that turn less often than this over the original context are interpolated by `factor`."""
    is_truncated: bool
    """Whether the ramp between the two begins and ends at whole pairs."""
    attention_factor: float
    """What rotated queries and keys are multiplied by, 0 or more."""

    def periods(self, base: float, head_dim: int) -> list[float]:
        """Return the positions per radian of every pair of elements, all rotated: [head_dim / 2]."""
        begin, end = (self._pair_that_turns(turns, base, head_dim) for turns in (self.fast_turns, self.slow_turns))
        if self.is_truncated:
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(begin, 0), min(end, head_dim - 1)
        width = end - begin or _LEAST_WIDTH
        stretched = [min(max((pair - begin) / width, 0.0), 1.0) for pair in range(head_dim // 2)]
        plain = [base ** (2 * pair / head_dim) for pair in range(head_dim // 2)]
        return [period / (1 - share + share / self.factor) for period, share in zip(plain, stretched, strict=True)]

    def _pair_that_turns(self, turns: float, base: float, head_dim: int) -> float:
        """Return the pair, with a fraction, that turns so often over the original context."""
        return head_dim * math.log(self.original_context_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))


def check_rope(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse rotary embeddings that are not known to turn K by its position alone, in whichever form they are given.

    Raises:
        ConfigurationError: Naming the field, and the kinds or values that are served; or both fields, if the two forms
            differ, of which engines take different ones.
    """
    for name, kind in rope_types(config):
        is_of_all_layers = name.count(".") == 1
        with_yarn = is_of_all_layers and config.get("model_type") in YARN_FAMILIES
        expected = (*_ROPE_TYPES, "yarn") if with_yarn else _ROPE_TYPES
        if config.get("model_type") == "gemma4_text" and not is_of_all_layers:
            expected = (*_ROPE_TYPES, "proportional")
        if kind not in expected:
            raise ConfigurationError(
                f"model {directory}: {name}: expected {', '.join(expected)}, got {kind!r}:"
                " K that may depend on more than its position cannot be cached"
            )
    first, second = (_completed(config, field) for field in _ROPE_FIELDS)
    if first is not None and second is not None and first != second:
        raise ConfigurationError(
            f"model {directory}: rope_parameters and rope_scaling: expected the same in both, or one of them,"
            f" got {first} and {second}"
        )
    if rope_parameters(config).get("rope_type") == "yarn":
        _check_yarn(directory, config)


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary embedding's parameters, from the form of transformers 5 or the older flat one.

    Those that are not written have the values that transformers gives them.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "type" in parameters:
        parameters.setdefault("rope_type", parameters.pop("type"))
    default_theta = _ROPE_THETAS.get(config.get("model_type", ""), 10_000.0)
    parameters.setdefault("rope_theta", config.get("rope_theta", default_theta))
    if parameters.get("rope_type") in _STRETCHING_ROPE_TYPES:
        if _ORIGINAL_CONTEXT in config:  # transformers prefers it
            parameters[_ORIGINAL_CONTEXT] = config[_ORIGINAL_CONTEXT]
        parameters.setdefault(_ORIGINAL_CONTEXT, config.get("max_position_embeddings"))
    return parameters


def read_yarn(config: Mapping[str, Any]) -> Yarn | None:
    """Return the numbers of YaRN of a configuration that `check_rope` let pass; None: it has another kind."""
    parameters = rope_parameters(config)
    if parameters.get("rope_type") != "yarn":
        return None
    attention_factor = parameters.get("attention_factor")
    return Yarn(
        factor=parameters["factor"],
        original_context_tokens=parameters[_ORIGINAL_CONTEXT],
        fast_turns=parameters.get("beta_fast") or _FAST_TURNS,
        slow_turns=parameters.get("beta_slow") or _SLOW_TURNS,
        is_truncated=bool(parameters.get("truncate", True)),
        attention_factor=_attention_factor(parameters) if attention_factor is None else attention_factor,
    )


def rope_types(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the kinds of rotary embedding that a configuration names, for all layers or some, and where it does."""
    for field in _ROPE_FIELDS:
        parameters = config.get(field) or {}
        by_layer_type = {f"{field}.{key}": value for key, value in parameters.items() if isinstance(value, Mapping)}
        for name, each in {field: parameters, **by_layer_type}.items():
            yield from ((f"{name}.{key}", each[key]) for key in ("rope_type", "type") if key in each)


def _completed(config: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """Return one form's parameters with what they take from elsewhere, so that equal ones compare equal."""
    parameters = dict(config.get(field) or {})
    if not parameters:
        return None
    kind = parameters.pop("type", "default")
    return {"rope_type": kind, "rope_theta": config.get("rope_theta")} | parameters


def _attention_factor(parameters: Mapping[str, Any]) -> float:
    """Return the factor that follows from `factor`; mscale counts only together with mscale_all_dim."""
    growth = 0.1 * math.log(parameters["factor"])
    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return float((mscale * growth + 1.0) / (mscale_all_dim * growth + 1.0))
    return growth + 1.0


def _check_yarn(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse numbers that YaRN cannot be computed with; ConfigurationError names the field and what was expected."""
    field = next(field for field in _ROPE_FIELDS if config.get(field))
    values = rope_parameters(config)
    for key, least in (("factor", 1), ("rope_theta", 2), (_ORIGINAL_CONTEXT, 1)):
        if not _is_number(values.get(key)) or values[key] < least:
            raise _expected(directory, f"{field}.{key}", f"a number of {least} or more", values.get(key))
    for key in ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        value = values.get(key)
        if value is not None and not (_is_number(value) and value >= 0):
            raise _expected(directory, f"{field}.{key}", "a number of 0 or more, or none", value)
    if not isinstance(values.get("truncate", True), bool):
        raise _expected(directory, f"{field}.truncate", "true or false", values["truncate"])
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise _expected(directory, f"{field}.partial_rotary_factor", "1.0", values["partial_rotary_factor"])


def _expected(directory: Path, name: str, expected: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"model {directory}: {name}: yarn: expected {expected}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
