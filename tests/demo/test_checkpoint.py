"""The committed checkpoints: small, loadable, and as accurate as they claim."""

import json
import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from baton.demo import MODELS, checkpoint_dir
from demo.dialogues import SMALL_TALK, Task
from demo.evaluate import REPORT_FILE, Accuracy, measure, needle_row, short_rows

MARGIN = 0.1
"""How far a small sample may fall below the reported share."""


class Demo(NamedTuple):
    """A checkpoint, loaded."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reported: Mapping[str, float]
    """Share answered exactly, by kind."""


@pytest.fixture(scope="module", params=MODELS)
def demo(request: pytest.FixtureRequest) -> Demo:
    """Return each checkpoint in turn."""
    folder = checkpoint_dir(request.param)
    entries = json.loads((folder / REPORT_FILE).read_text())
    return Demo(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(folder),
        {entry["name"]: Accuracy(**entry).share for entry in entries},
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_is_small_and_holds_no_pickles(name: str) -> None:
    """At most 8 MB in all, weights as safetensors only."""
    files = list(checkpoint_dir(name).iterdir())

    assert sum(file.stat().st_size for file in files) <= 8_000_000
    assert [file.name for file in files if file.suffix not in {".json", ".jinja"}] == ["model.safetensors"]


def test_the_rope_base_is_written_for_every_reader() -> None:
    """The flat key that mlx-lm reads of a Llama and the nested one of transformers agree."""
    config = json.loads((checkpoint_dir() / "config.json").read_text())

    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


def test_both_checkpoints_speak_alike() -> None:
    """Tokenizer and chat template are the same bytes."""
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert len({(folder / file).read_bytes() for folder in MODELS.values()}) == 1


@pytest.mark.parametrize("task", [task for task in Task if task is not Task.RETRIEVE])
def test_held_out_exercises_are_answered_as_reported(demo: Demo, task: Task) -> None:
    """A small sample stays within the margin of the figure in the report."""
    measured = measure(demo.model, task.value, short_rows(random.Random(100), task, 40))

    assert measured.share >= demo.reported[task.value] - MARGIN


@pytest.mark.parametrize(("length", "num_rows"), [(128, 20), (512, 8), (1024, 4)])
def test_needles_are_found_as_reported(demo: Demo, length: int, num_rows: int) -> None:
    """A key's value comes back from a context of this many tokens."""
    rng = random.Random(200 + length)
    measured = measure(demo.model, "needles", [needle_row(rng, length) for _ in range(num_rows)])

    assert measured.share >= demo.reported[f"retrieve@{length}"] - 1.5 * MARGIN


def test_a_chat_of_several_turns_is_answered_and_stops_by_itself(demo: Demo) -> None:
    """Greeting, sum and a fact from an earlier message, generated greedily through the chat template."""
    messages = [{"role": "system", "content": "Answer briefly."}]
    answers = []
    for question in ("Hello", "Remember these facts:\nlemon: 4821\nkiwi: 7350", "What is 2 + 3?", "What is lemon?"):
        messages.append({"role": "user", "content": question})
        answers.append(_answer(demo, messages))
        messages.append({"role": "assistant", "content": answers[-1]})

    assert answers[0] in SMALL_TALK
    assert answers[1:] == ["Noted.", "2 + 3 = 5", "lemon: 4821"]


def _answer(demo: Demo, messages: list[dict[str, str]]) -> str:
    prompt = demo.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = demo.model.generate(**prompt, max_new_tokens=200)[0, prompt["input_ids"].shape[1] :]
    assert output[-1] == demo.tokenizer.eos_token_id
    return str(demo.tokenizer.decode(output[:-1]))
