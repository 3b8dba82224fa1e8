"""What an error calls the field of a request."""

from __future__ import annotations

import pytest

from baton.errors import InvalidFieldError
from baton.gateway.generation.preparation import ContextLengthError
from baton.gateway.generation.requests import GenerationRequest, TextPrompt
from baton.gateway.generation.tools import ToolUse
from baton.text.tools import Tool
from baton.v1.generation_pb2 import SamplingParameters

TOOLS = ToolUse((Tool("f", {}, None),))


def request_with(names: dict[str, str], use: ToolUse | None = None) -> GenerationRequest:
    """Return a request whose client has other names for fields."""
    prompt, sampling = TextPrompt("x"), SamplingParameters()
    return GenerationRequest("r", "m", prompt, sampling, field_names=names, tool_use=use)


@pytest.mark.parametrize(
    ("names", "use", "field", "expected"),
    [
        ({"stop": "stop_sequences"}, None, "stop", "stop_sequences"),
        ({"stop": "stop_sequences"}, None, "top_p", "top_p"),
        ({"structured_output": "text.format"}, None, "structured_output.json_schema", "text.format"),
        ({"structured_output": "text.format"}, TOOLS, "structured_output.lark", "text.format"),
        ({"structured_output": ""}, TOOLS, "structured_output.lark", "tools"),
        ({}, ToolUse(TOOLS.tools, "none"), "structured_output.lark", "structured_output.lark"),
    ],
)
def test_an_error_names_the_field_as_its_client_does(
    names: dict[str, str], use: ToolUse | None, field: str, expected: str
) -> None:
    """A constraint that no field demands is the grammar of calls; the problem stays as it is."""
    error = request_with(names, use).in_words_of_client(InvalidFieldError(field, "too long"))

    assert (error.field, error.problem) == (expected, "too long")


def test_a_prompt_that_is_too_long_is_called_by_its_name_in_the_text_too() -> None:
    """The counts stay."""
    error = request_with({"messages": "input"}).in_words_of_client(ContextLengthError("messages", 8, (6, 3)))

    assert isinstance(error, ContextLengthError)
    assert "9 tokens (6 in the input, 3 in the completion)" in error.problem
    assert "messages" not in error.problem
