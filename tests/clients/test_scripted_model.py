"""The model of agents recites what it was made for, by attention and positions as transformers computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tests.clients.scripted_model import WINDOW, write_model
from text.tokenizer_folders import byte_level

_END = "Which numbers follow when one has counted to four? "
_ANSWER = "five, six<|end|>"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes."""
    tokenizer = byte_level()
    tokenizer.pad_token = tokenizer.eos_token = "<|end|>"
    return tokenizer


def test_it_says_its_script_wherever_the_end_stands_and_nothing_else(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """An end of a prompt that it does not know ends its answer."""
    write_model(tmp_path, tokenizer, {_END: _ANSWER})
    model = Qwen3ForCausalLM.from_pretrained(str(tmp_path), dtype=torch.float32)

    said = []
    for prompt in (_END, f"{'Some other text. ' * 30}{_END}", _END + "Well? "):
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        output = model.generate(ids, max_new_tokens=20, do_sample=False)
        said.append(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=False))

    assert said == [_ANSWER, _ANSWER, "<|end|>"]


def test_an_end_that_is_too_short_or_has_two_answers_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """It would be said in other places too."""
    with pytest.raises(ValueError, match=f"expected {WINDOW} tokens"):
        write_model(tmp_path, tokenizer, {"short": "x"})
    with pytest.raises(ValueError, match="two answers"):
        write_model(tmp_path, tokenizer, {_END: "x", f" {_END}": "y"})
