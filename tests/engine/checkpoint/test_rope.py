"""The rotary embedding of a model folder is read as transformers reads it, and refused by field where it cannot be."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from baton.engine.checkpoint.families import FAMILIES
from baton.engine.checkpoint.rope import Yarn, check_rope, read_yarn, rope_parameters
from baton.errors import ConfigurationError

FOLDER = Path("folder")
HEAD_DIM = 64
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 4096}
BOTH = "rope_parameters and rope_scaling: expected the same in both, or one of them"


def config_of(**changes: Any) -> dict[str, Any]:
    """Return a configuration of the family of Llama."""
    return {"model_type": "llama", "max_position_embeddings": 16_384, "head_dim": HEAD_DIM} | changes


def test_rope_parameters_are_read_from_both_forms() -> None:
    """The nested form of transformers 5 and the flat, older one say the same."""
    nested = {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0}}
    flat = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 8.0}}

    assert rope_parameters(nested) == rope_parameters(flat)
    assert rope_parameters({}) == {"rope_theta": 10_000.0}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"nemotron_h"}))  # which rotates nothing
def test_a_base_that_is_not_named_is_the_one_of_transformers(family: str) -> None:
    """Families have bases of their own."""
    theirs = AutoConfig.for_model("deepseek_v3" if family == "kimi_k2" else family).rope_parameters

    assert rope_parameters({"model_type": family})["rope_theta"] == theirs.get("full_attention", theirs)["rope_theta"]


@pytest.mark.parametrize("outside", [{}, {"original_max_position_embeddings": 512}])
@pytest.mark.parametrize("inside", [{}, {"original_max_position_embeddings": 256}])
def test_the_original_context_is_read_where_transformers_reads_it(
    outside: dict[str, int], inside: dict[str, int]
) -> None:
    """Beside the parameters, else among them, else the longest context."""
    parameters = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    config = config_of(rope_parameters=parameters | {"high_freq_factor": 4.0} | inside, **outside)
    theirs = LlamaConfig(**deepcopy(config))
    theirs.standardize_rope_params()

    assert rope_parameters(config) == theirs.rope_parameters


@pytest.mark.parametrize(
    "config",
    [
        config_of(rope_parameters=YARN),
        config_of(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, rope_theta=5e5),
        config_of(rope_parameters={key: YARN[key] for key in ("rope_type", "rope_theta", "factor")}),
        config_of(rope_parameters=YARN, original_max_position_embeddings=512),
        config_of(rope_parameters=YARN | {"factor": 1.0}),
        config_of(rope_parameters=YARN | {"factor": 1.0, "attention_factor": 1.5}),
        config_of(rope_parameters=YARN | {"attention_factor": 0.8, "mscale": 2.0, "mscale_all_dim": 1.0}),
        config_of(rope_parameters=YARN | {"beta_fast": None, "beta_slow": 0, "attention_factor": None}),
        config_of(rope_parameters=YARN | {"beta_fast": 5.0, "beta_slow": 5, "truncate": False}),
        config_of(rope_parameters=YARN | {"beta_fast": 64, "beta_slow": 0.01, "truncate": False}),
        config_of(rope_parameters=YARN | {"mscale": 0.707}),
        config_of(rope_parameters=YARN | {"mscale_all_dim": 0.707}),
        config_of(rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}),
    ],
)
def test_yarn_has_the_frequencies_and_the_scale_of_transformers(config: dict[str, Any]) -> None:
    """Every option, its default, and the places that the original context is read from."""
    theirs = LlamaConfig(**deepcopy(config))
    frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")

    check_rope(FOLDER, config)
    yarn = read_yarn(config)

    assert yarn is not None
    assert yarn.attention_factor == pytest.approx(scale)
    periods = yarn.periods(rope_parameters(config)["rope_theta"], HEAD_DIM)
    assert [1 / period for period in periods] == pytest.approx(frequencies.tolist(), rel=1e-5)


def test_other_rotations_have_no_numbers_of_yarn() -> None:
    """Whether nothing or another kind is named."""
    assert read_yarn(config_of()) is None
    assert read_yarn(config_of(rope_scaling={"rope_type": "linear", "factor": 2.0})) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": None}, r"rope_parameters\.factor: yarn: expected a number of 1 or more, got None"),
        ({"factor": 0.5}, r"rope_parameters\.factor: yarn: expected a number of 1 or more, got 0\.5"),
        ({"rope_theta": "1e6"}, r"rope_parameters\.rope_theta: yarn: expected a number of 2 or more, got '1e6'"),
        ({"original_max_position_embeddings": None}, r"original_max_position_embeddings: yarn: expected a number"),
        ({"attention_factor": -1.0}, r"rope_parameters\.attention_factor: yarn: expected a number of 0 or more"),
        ({"beta_fast": True}, r"rope_parameters\.beta_fast: yarn: expected a number of 0 or more, or none, got True"),
        ({"mscale": "1"}, r"rope_parameters\.mscale: yarn: expected a number of 0 or more, or none, got '1'"),
        ({"truncate": "no"}, r"rope_parameters\.truncate: yarn: expected true or false, got 'no'"),
        ({"partial_rotary_factor": 0.5}, r"rope_parameters\.partial_rotary_factor: yarn: expected 1\.0, got 0\.5"),
    ],
)
def test_numbers_that_yarn_cannot_be_computed_with_are_refused(changes: dict[str, Any], message: str) -> None:
    """The message names the field, what was expected and what was there."""
    with pytest.raises(ConfigurationError, match=message):
        check_rope(FOLDER, config_of(rope_parameters=YARN | changes))


def test_yarn_as_gpt_oss_is_published_with_it_is_read() -> None:
    """In the older form, with a ramp that begins and ends within pairs."""
    numbers = {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
    scaling = numbers | {"rope_type": "yarn", "truncate": False}
    config = config_of(model_type="gpt_oss", rope_theta=150_000, rope_scaling=scaling, initial_context_length=4096)

    check_rope(FOLDER, config)

    assert read_yarn(config) == Yarn(32.0, 4096, 32.0, 1.0, False, pytest.approx(1.3465736))


@pytest.mark.parametrize("family", ["phi3", "gemma2", "gemma3_text", "mixtral"])
def test_yarn_is_refused_in_families_that_are_not_tested_with_it(family: str) -> None:
    """To phi3 it is a name of longrope."""
    with pytest.raises(ConfigurationError, match=r"rope_parameters\.rope_type: expected default, linear, llama3, got"):
        check_rope(FOLDER, config_of(model_type=family, rope_parameters=YARN))


def test_yarn_of_some_layers_is_refused() -> None:
    """No family that is tested with it has parameters for each kind of layer."""
    nested = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}

    with pytest.raises(ConfigurationError, match=r"rope_parameters\.full_attention\.rope_type: expected default"):
        check_rope(FOLDER, config_of(rope_parameters=nested))


@pytest.mark.parametrize(
    "config",
    [
        config_of(rope_parameters={"rope_type": "default", "rope_theta": 1e6}, rope_scaling=YARN),
        config_of(rope_parameters=YARN, rope_scaling=YARN | {"factor": 8.0}),
        config_of(rope_parameters=YARN, rope_scaling=YARN | {"rope_theta": 1e4}),
        config_of(rope_parameters=YARN, rope_scaling={key: YARN[key] for key in YARN if key != "rope_theta"}),
    ],
)
def test_two_forms_that_differ_are_refused_by_both_names(config: dict[str, Any]) -> None:
    """Engines take different ones; the last leaves rope_theta to transformers' default."""
    with pytest.raises(ConfigurationError, match=BOTH):
        check_rope(FOLDER, config)


def test_two_forms_that_agree_are_read() -> None:
    """As folders are that are meant for readers of both."""
    flat = {("type" if key == "rope_type" else key): YARN[key] for key in YARN if key != "rope_theta"}

    check_rope(FOLDER, config_of(rope_parameters=YARN, rope_scaling=flat, rope_theta=1e6))
    check_rope(FOLDER, config_of(rope_parameters=YARN, rope_scaling={}))
    check_rope(FOLDER, config_of(rope_parameters=None, rope_scaling=None))
