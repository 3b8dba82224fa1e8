"""Answers as models of each format write them, and what they mean."""

from __future__ import annotations

from typing import NamedTuple

from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning
from baton.text.tools import Tool

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", {"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)


class Recording(NamedTuple):
    """An answer and its parts."""

    tool_format: str
    text: str
    parts: list[OutputPart]


def call(call_index: int, name: str, arguments: str) -> list[OutputPart]:
    """Return the parts of a whole call."""
    middle: list[OutputPart] = [CallArguments(call_index, arguments)] if arguments else []
    return [CallStart(call_index, name), *middle, CallEnd(call_index)]


_PARIS, _OSLO = '{"city": "Paris", "days": 2}', '{"city": "Oslo \\"é\\" }{"}'
_ONE_PARIS = call(0, "get_weather", _PARIS)
_TWO = [*_ONE_PARIS, *call(1, "get_weather", _OSLO)]
_DEEPSEEK_NEW = "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
_DEEPSEEK_OLD = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{}\n```<｜tool▁call▁end｜>"
_KIMI = "<|tool_call_begin|>functions.get_weather:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"

CALLS = [
    Recording(
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {_PARIS}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get_weather", "arguments": {_OSLO}}}\n</tool_call>',
        [Content("Let me see."), *_TWO],
    ),
    Recording("hermes", '<tool_call>{"name":"now","arguments":{}}</tool_call>', call(0, "now", "{}")),
    Recording("hermes", '<tool_call>\n{"name": "now"}\n</tool_call>\n', call(0, "now", "{}")),
    Recording("hermes", f'<tool_call>\n{{"arguments": {_PARIS}, "name": "get_weather"}}\n</tool_call>', _ONE_PARIS),
    Recording(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": ' + _PARIS + "\n</tool_call> Done.",
        [*_ONE_PARIS, Content(" Done.")],
    ),
    Recording(
        "hermes",
        f'Let me see.\n<tool_call>\n[\n  {{"name": "get_weather", "arguments": {_PARIS}}},\n'
        f'  {{"name": "get_weather", "arguments": {_OSLO}}}\n]\n</tool_call>',
        [Content("Let me see."), *_TWO],
    ),
    Recording(
        "nemotron",
        f'Hm.\n\n<TOOLCALL>[{{"name": "get_weather", "arguments": {_PARIS}}}, '
        f'{{"name": "get_weather", "arguments": {_OSLO}}}]</TOOLCALL>\n',
        [Content("Hm."), *_TWO],
    ),
    Recording(
        "qwen_coder",
        "I look.\n\n<tool_call>\n<function=get_weather>\n"
        '<parameter=city>\nOslo "é"\n</parameter>\n<parameter=days>\n2\n'
        '</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n'
        "<function=now>\n</function>\n</tool_call>",
        [
            Content("I look."),
            *call(0, "get_weather", '{"city": "Oslo \\"é\\"", "days": 2, "tags": ["a", "b"]}'),
            *call(1, "now", "{}"),
        ],
    ),
    Recording(
        "qwen_coder",
        "<function=get_weather>\n<parameter=city>\ntwo\nlines <b>\n</parameter>\n"
        "<parameter=days>\nmany\n</parameter>\n</function>",
        call(0, "get_weather", '{"city": "two\\nlines <b>", "days": "many"}'),
    ),
    Recording(
        "glm",
        "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [Content("I look."), *_ONE_PARIS, *call(1, "now", "{}")],
    ),
    Recording(
        "glm",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>two\nlines <b>\n</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        [*call(0, "get_weather", '{"city": "two\\nlines <b>\\n"}'), *call(1, "now", "{}")],
    ),
    Recording(
        "kimi",
        "I ask.<|tool_calls_section_begin|>"
        + _KIMI.format(0, _PARIS)
        + _KIMI.format(1, _OSLO)
        + "<|tool_calls_section_end|>",
        [Content("I ask."), *_TWO],
    ),
    Recording(
        "minimax",
        'Hm.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo "é"</parameter>\n'
        '<parameter name="days">2</parameter>\n<parameter name="tags">["a", "b"]</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [
            Content("Hm."),
            *call(0, "get_weather", '{"city": "Oslo \\"é\\"", "days": 2, "tags": ["a", "b"]}'),
            *call(1, "now", "{}"),
        ],
    ),
    Recording(
        "gemma",
        'I ask.<|tool_call>call:get_weather{city:<|"|>Oslo "é" }{<|"|>,tags:[<|"|>a<|"|>,<|"|>b: c<|"|>]}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        [
            Content("I ask."),
            *call(0, "get_weather", '{"city": "Oslo \\"é\\" }{", "tags": ["a", "b: c"]}'),
            *call(1, "now", "{}"),
        ],
    ),
    Recording("gemma", f"<|tool_call>call:get_weather{_PARIS}<tool_call|>", _ONE_PARIS),
    Recording("llama_json", f'{{"name": "get_weather", "parameters": {_PARIS}}}', _ONE_PARIS),
    Recording(
        "llama_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {_PARIS}}}; '
        f'{{"type": "function", "name": "get_weather", "parameters": {_OSLO}}}',
        _TWO,
    ),
    Recording(
        "pythonic",
        '[get_weather(city="Paris", days=2), get_weather(city=\'Oslo "é" }{\'), now()]',
        [*_TWO, *call(2, "now", "{}")],
    ),
    Recording(
        "pythonic",
        'Sure.<|python_start|>[get_weather(city="a) b", tags=["x", None], days=-1)]<|python_end|>',
        [Content("Sure."), *call(0, "get_weather", '{"city": "a) b", "tags": ["x", null], "days": -1}')],
    ),
    Recording(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_PARIS}}}, '
        f'{{"name": "get_weather", "arguments": {_OSLO}, "id": "abcdefghi"}}]',
        _TWO,
    ),
    Recording(
        "mistral", f"Hm.[TOOL_CALLS]get_weather[ARGS]{_PARIS}[TOOL_CALLS]get_weather{_OSLO}", [Content("Hm."), *_TWO]
    ),
    Recording("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]Ab1[ARGS]{_PARIS}", _ONE_PARIS),
    Recording(
        "deepseek",
        "I ask.<｜tool▁calls▁begin｜>"
        + _DEEPSEEK_OLD.format(_PARIS)
        + "\n"
        + _DEEPSEEK_OLD.format(_OSLO)
        + "<｜tool▁calls▁end｜>",
        [Content("I ask."), *_TWO],
    ),
    Recording(
        "deepseek",
        "<｜tool▁calls▁begin｜>" + _DEEPSEEK_NEW.format(_PARIS) + _DEEPSEEK_NEW.format(_OSLO) + "<｜tool▁calls▁end｜>",
        _TWO,
    ),
    Recording(
        "harmony",
        "<|channel|>analysis<|message|>Weather, so I call.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "One moment.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{_PARIS}<|call|>",
        [Reasoning("Weather, so I call."), Content("One moment."), *_ONE_PARIS],
    ),
    Recording(
        "harmony",
        "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
        [Reasoning("2+2"), Content("It is 4.")],
    ),
]
"""Answers with calls."""

LOOKALIKES = [
    Recording("hermes", text, [Content(text)])
    for text in (
        "a < b, <tool> and <tool_ca",
        " \n<tool_call>none</tool_call> \n",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>\n{"arguments": {}',
        "<tool_call>",
        '<tool_call>{"name": "now" oops</tool_call>{"x": 1}',
        "text \n ",
    )
] + [
    Recording(tool_format, text, [Content(text)])
    for tool_format, text in (
        ("qwen_coder", "<tool_call>\n<fun"),
        ("minimax", "<minimax:tool_call>\n<invoke nam"),
        ("gemma", "<|tool_call>call:now{a"),
        ("gemma", "<|tool_call>call:now[]<tool_call|> x"),
        ("qwen_coder", "<function=a\nb>"),
        ("qwen_coder", "if a <function: pass"),
        ("glm", "<tool_call>a b"),
        ("glm", "<tool_call>now\n<oops"),
        ("kimi", "<|tool_calls_section_begin|>oops"),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_end|>"),
        ("llama_json", '{"name": "Ada", "parameters": {"x": 1}}'),
        ("llama_json", ' {"answer": [1, 2]} '),
        ("llama_json", '{"name": "now", '),
        ("llama_json", "no <|python_tag|> now"),
        ("pythonic", "[link](http://x)"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[now("),
        ("pythonic", "[now(1)]"),
        ("pythonic", "[get_weather(city=open())]"),
        ("nemotron", "<TOOLCALL>[]</TOOLCALL>"),
        ("mistral", "[TOOL_CALLS"),
        ("mistral", "[TOOL_CALLS]a b"),
        ("mistral", "[TOOL_CALLS] [1]"),
        ("deepseek", "<｜tool▁calls▁begin｜>oops"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a b<｜tool▁call▁end｜>"),
        ("harmony", "plain <|mess"),
        ("harmony", "<|channel|>fin"),
    )
]
"""Answers that only look like calls."""
