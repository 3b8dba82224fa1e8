"""The checkpoint's tokenizer and template say the same as the rows that it is measured on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

from baton.demo import checkpoint_dir
from demo.evaluate import DialogueRow
from demo.vocabulary import END_ID, MARKERS, NUM_TOKENS, PAD_ID, encode_text

TOKENIZER = AutoTokenizer.from_pretrained(checkpoint_dir())
MARKER_FREE = st.text(st.characters(codec="utf-8")).filter(lambda text: not any(marker in text for marker in MARKERS))


@settings(deadline=None)
@given(MARKER_FREE)
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    """Bytes are the fallback of everything, and the encoder of rows agrees with the tokenizer."""
    token_ids = TOKENIZER.encode(text, add_special_tokens=False)

    assert token_ids == encode_text(text)
    assert TOKENIZER.decode(token_ids) == text


def test_the_chat_template_writes_what_rows_hold() -> None:
    """A conversation of several turns gives the same tokens by either way."""
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "What is 12 + 30?"},
        {"role": "assistant", "content": "12 + 30 = 42"},
        {"role": "user", "content": "  spaces, \n line ends and ü stay  "},
    ]
    row = DialogueRow()
    for message in messages:
        row.add(message["role"], message["content"])

    rendered = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert rendered == [*row.tokens, MARKERS.index("<|assistant|>")]


def test_an_unknown_role_is_refused_by_name() -> None:
    """The template does not invent markers."""
    with pytest.raises(TemplateError, match="tool"):
        TOKENIZER.apply_chat_template([{"role": "tool", "content": "x"}])


def test_special_ids_are_those_of_the_vocabulary() -> None:
    """The end of a turn is EOS, and the table has no holes."""
    assert len(TOKENIZER) == NUM_TOKENS
    assert (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (END_ID, PAD_ID)
