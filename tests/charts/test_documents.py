"""What `make chart` writes is what lies in the repository."""

from __future__ import annotations

import pytest
from helm_python import Chart, lint

from charts.document import documents, goldens
from charts.render import CHART, EXAMPLES, golden_text, read_example, render
from charts.values_file import read_values
from tests.charts.rendering import EVERYTHING
from tests.charts.rendering import EXAMPLES as NAMES


def test_schema_and_table_follow_from_values_and_settings() -> None:
    """A key, default, comment or setting that changes needs `make chart`."""
    for path, text in documents().items():
        assert path.read_text("utf-8") == text, f"{path.name} is out of date: run `make chart`"


@pytest.mark.parametrize("name", NAMES)
def test_examples_render_as_committed(name: str) -> None:
    """A change of a template shows in review as a change of what is installed."""
    golden = (EXAMPLES / "rendered" / f"{name}.yaml").read_text("utf-8")

    assert golden == golden_text(render(read_example(name))), "run `make chart`"


def test_no_rendering_is_left_over() -> None:
    """Every golden file belongs to an example."""
    assert {path.name for path in (EXAMPLES / "rendered").iterdir()} == {path.name for path in goldens()}


@pytest.mark.parametrize("name", NAMES)
def test_examples_pass_lint(name: str) -> None:
    """`helm lint --strict` finds nothing but that the chart has no icon."""
    report = lint(CHART, dict(read_example(name)), strict=True)

    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
    assert report["errors"] is None or report["errors"] == []


def test_every_default_passes_the_schema() -> None:
    """The schema that is made from the defaults takes them."""
    with Chart.load(CHART) as chart:
        chart.validate_schema({})
        chart.validate_schema(dict(EVERYTHING))


def test_every_value_is_described_by_a_sentence() -> None:
    """The table has no empty cell, and every description ends."""
    values = [value for root in read_values(CHART / "values.yaml") for value in root.walk()]

    assert len(values) > 100
    assert [value.path for value in values if not value.description.endswith(".")] == []


def test_the_notes_print_a_request() -> None:
    """What Helm prints after an installation holds the first curl, with the model's name."""
    golden = (EXAMPLES / "rendered" / "gpu.yaml").read_text("utf-8")

    assert "curl -s http://127.0.0.1:8000/v1/chat/completions" in golden
    assert '"model": "llama-3.1-8b"' in golden
    assert "Authorization: Bearer $BATON_API_KEY" in golden
