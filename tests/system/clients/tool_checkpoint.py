"""The demo model with a chat template that knows tools: it has never seen any, and calls because it is made to."""

from __future__ import annotations

import shutil
from pathlib import Path

from baton.demo import checkpoint_dir

_TEMPLATE = """\
{%- if tools -%}
{{- '<|system|>Tools: ' + tools | tojson + ' Call them by <tool_call></tool_call>.<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|' + message.role.replace('tool', 'user') + '|>' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + call.function | tojson + '</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def tool_checkpoint(folder: Path) -> Path:
    """Write the checkpoint to a folder."""
    shutil.copytree(checkpoint_dir(), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder
