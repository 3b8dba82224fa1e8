"""A tokenizer whose chat template knows tools and reasoning, and the answers that its model gives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from baton.internal.v1 import decode_service_pb2 as decode
from baton.v1 import generation_pb2 as generation
from gateway.fake_cluster import FakeCluster, finished, judgement, tokens
from text.tokenizer_folders import byte_level

MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool['function'] | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] if message['role'] != 'tool' else 'user' }}|>"
    "{% if message['name'] %}({{ message['name'] }}){% endif %}"
    "{% if message['reasoning_content'] %}[{{ message['reasoning_content'] }}]{% endif %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>\n{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""Hermes' notation of calls; with `enable_thinking` the prompt opens the reasoning."""

FUNCTION = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
TOOL: Any = {"type": "function", "function": FUNCTION}
ARGUMENTS = '{"city": "Zürich 😀", "days": 2}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
REASONING = "Hm, the weather."
ANSWER = f"<think>\n{REASONING}\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
"""Reasoning, content and two calls."""


def tool_tokenizer(*, has_special_marks: bool = True) -> PreTrainedTokenizerFast:
    """Return the tokenizer; its marks are special tokens or mere text."""
    tokenizer = byte_level()
    if has_special_marks:
        tokenizer.add_tokens(MARKS, special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def answer_with(cluster: FakeCluster, text: str, *, chunk_tokens: int = 3) -> None:
    """Let the nodes generate a text, some tokens per message."""
    token_ids = PreTrainedTokenizerFast.from_pretrained(str(cluster.model_dir))(text, add_special_tokens=False)
    ids: list[int] = token_ids["input_ids"]
    for node in cluster.decodes:

        async def answer(
            request: decode.DecodeServiceGenerateRequest, node_id: str = node.node_id
        ) -> AsyncIterator[Any]:
            for chunk in judgement(request):
                yield chunk
            room = ids[: request.sampling.max_token_count]
            for start in range(0, len(room), chunk_tokens):
                part = room[start : start + chunk_tokens]
                yield tokens(start, part, [generation.TokenLogprob(token_id=each, logprob=-0.5) for each in part])
            is_cut = len(room) < len(ids)
            yield finished(
                request, node_id, generation.FINISH_REASON_LENGTH if is_cut else generation.FINISH_REASON_STOP
            )

        node.script = answer


def tool_cluster(model_dir: Path, text: str, *, num_nodes: int = 2) -> FakeCluster:
    """Return a cluster whose context has room for tools, and whose nodes generate a text."""
    cluster = FakeCluster(model_dir, num_nodes=num_nodes)
    cluster.context_tokens = 4096
    answer_with(cluster, text)
    return cluster


def tool_folder(folder: Path, *, has_special_marks: bool = True) -> Path:
    """Write the tokenizer as a model folder has it."""
    tool_tokenizer(has_special_marks=has_special_marks).save_pretrained(folder)
    return folder
