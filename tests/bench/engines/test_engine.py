"""The engine benchmark counts what it says it counts."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.engines.case import CASES, Case, prompts_of
from bench.engines.engine import Row, draw_engines, merged, ratio, read_rows, roofline, table_of, takes_part, write_rows
from bench.engines.models import NUM_HEAD_PARAMETERS, NUM_LINEAR_PARAMETERS, flops, step_bytes
from bench.engines.systems import cpu_seconds_of


def case_of(name: str) -> Case:
    """Return a case by its name."""
    return next(case for case in CASES if case.name == name)


def rows_of(baton: list[float], other: list[float]) -> list[Row]:
    """Return rows of all cases with the given CPU seconds."""
    return [
        Row("float32", case.name, system, seconds, 100, [50.0] * len(seconds), baton)
        for case in CASES
        for system, seconds in (("baton", baton), ("transformers", other))
    ]


def test_the_shape_is_that_of_smollm_135m() -> None:
    """106 million parameters multiply every token, 28 million more those whose logits are wanted."""
    assert NUM_LINEAR_PARAMETERS == 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536)
    assert NUM_HEAD_PARAMETERS == 49152 * 576
    assert flops(1) == 2 * NUM_LINEAR_PARAMETERS + 2 * NUM_HEAD_PARAMETERS + 4 * 30 * 9 * 64


@pytest.mark.parametrize(
    ("name", "num_counted"), [("p512", 1024), ("p4096", 4096), ("d1", 32), ("d8", 128), ("d32", 256)]
)
def test_prompts_count_their_tokens_and_steps_theirs(name: str, num_counted: int) -> None:
    """The first token of an output belongs to the prompt."""
    assert case_of(name).num_counted == num_counted


def test_prompts_that_are_measured_differ_between_rounds_and_repeat_with_their_seed() -> None:
    """So that no cache holds them, and every engine gets the same."""
    case = case_of("p512")

    assert prompts_of(case, 1) == prompts_of(case, 1)
    assert prompts_of(case, 1) != prompts_of(case, 2)
    assert [len(prompt) for prompt in prompts_of(case, 1)] == [512] * 2


def test_prompts_of_decoding_are_the_same_in_all_rounds() -> None:
    """They are not measured, and a cache may keep them."""
    case = case_of("d8")

    assert prompts_of(case, 1) == prompts_of(case, 2)
    assert len(set(map(tuple, prompts_of(case, 1)))) == 8


def test_long_cases_and_slow_engines_take_part_in_one_round() -> None:
    """Prompts of 4096 tokens, and continuous batching of many: once; all else in every round, and in warming up."""
    rounds = {
        (system, case.name): [number for number in range(4) if takes_part(system, case, number)]
        for system in ("baton", "transformers-cb")
        for case in CASES
    }

    assert rounds["baton", "p4096"] == rounds["transformers-cb", "d8"] == rounds["transformers-cb", "d32"] == [1]
    assert rounds["baton", "d32"] == rounds["transformers-cb", "d1"] == [0, 1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="clocks of other processes, to the nanosecond")
def test_the_cpu_time_of_a_process_is_that_of_all_its_threads() -> None:
    """Read from outside, it is what the process itself says."""
    before = time.process_time()

    measured = cpu_seconds_of(psutil.Process())

    assert before <= measured <= time.process_time()


def test_a_prompt_is_bound_by_products_and_a_step_by_reading() -> None:
    """With a core of 100 GFLOP/s that reads 10 GB/s."""
    rates = {"flops": 1e11, "bytes_per_second": 1e10}

    assert roofline(case_of("p512"), "float32", rates) == pytest.approx(512 * 1e11 / flops(512))
    assert roofline(case_of("d1"), "float32", rates) == pytest.approx(1e10 / step_bytes(1, 512, 4))
    assert roofline(case_of("d1"), "bfloat16", rates) == pytest.approx(2 * roofline(case_of("d1"), "float32", rates))


def test_a_ratio_is_taken_within_each_round() -> None:
    """A round in which the machine was slow for both says as much as another."""
    rows = rows_of(baton=[1.0, 10.0, 1.0], other=[2.0, 20.0, 3.0])

    assert ratio(rows[1]) == pytest.approx(2.0)
    assert rows[0].share() == pytest.approx(2.0)  # 100 tokens in a second, where 50 would be the best


def test_table_and_plot_show_every_engine(tmp_path: Path) -> None:
    """A line per engine, and a picture that is one."""
    rows = rows_of(baton=[1.0], other=[2.0])

    draw_engines(rows, tmp_path / "plot.png")

    assert table_of(rows).row_count == 2
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_part_that_is_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """So that a long measurement can be made in pieces."""
    old, again = rows_of(baton=[1.0], other=[2.0]), rows_of(baton=[4.0], other=[5.0])[:2]
    write_rows(tmp_path / "rows.json", old)

    rows = merged(read_rows(tmp_path / "rows.json"), again)

    assert rows == [*again, *old[2:]]
