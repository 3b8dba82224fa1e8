"""Tokenizers of Hugging Face folders."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from baton.errors import ConfigurationError, InvalidFieldError
from baton.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_digest
from text.tokenizer_folders import SPECIAL_TOKENS, byte_level, save, word_piece


def test_a_saved_tokenizer_is_loaded_with_its_template_and_digest(tmp_path: Path) -> None:
    """A folder is all that is needed."""
    original = byte_level()
    tokenizer = load_tokenizer(save(original, tmp_path))

    assert tokenizer.encode("hello world") == original("hello world")["input_ids"]
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|user|>hi<|end|><|assistant|>"
    assert tokenizer.digest == tokenizer_digest(tmp_path)
    assert tokenizer.vocabulary_size == len(original)


def test_a_folder_is_loaded_as_transformers_chooses(tmp_path: Path) -> None:
    """The short way for the generic class gives the tokens of the long one."""
    folder = save(byte_level(), tmp_path)
    text = "hello world <|user|>[tool é] 😀"
    expected = AutoTokenizer.from_pretrained(folder)
    short = load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    long = load_tokenizer(folder)

    assert short.encode(text) == long.encode(text) == expected(text)["input_ids"]
    assert short.special_token_ids == long.special_token_ids
    assert short.render_chat([{"role": "user", "content": "x"}]) == expected.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )


def test_a_conversation_is_rendered_and_tokenized_as_transformers_does() -> None:
    """Template, special tokens and the beginning of the answer."""
    original = byte_level()
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "hello 😀"}]

    expected = original.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokenizer = Tokenizer(original)

    assert tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False) == expected


def test_special_tokens_have_no_text() -> None:
    """They are left out of what a client reads."""
    tokenizer = Tokenizer(byte_level())

    assert len(tokenizer.special_token_ids) == len(SPECIAL_TOKENS)
    assert tokenizer.decode([*tokenizer.special_token_ids, *tokenizer.encode("hello")]) == "hello"


def test_a_model_without_template_refuses_messages_by_name() -> None:
    """The error says which field, and what to use instead."""
    original = word_piece()
    original.chat_template = None

    with pytest.raises(InvalidFieldError, match="messages: the model has no chat template"):
        Tokenizer(original).render_chat([{"role": "user", "content": "x"}])


def test_a_template_that_refuses_messages_is_quoted() -> None:
    """A template may demand, say, that roles alternate."""
    original = byte_level()
    original.chat_template = "{{ raise_exception('roles must alternate') }}"

    with pytest.raises(InvalidFieldError, match="roles must alternate"):
        Tokenizer(original).render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("needs_text", [True, False])
def test_a_template_may_need_the_text_of_a_message_without_one(*, needs_text: bool) -> None:
    """Qwen3's first template does, where a message has calls alone; others ask whether there is one."""
    original = byte_level()
    test = "'x' in message.content" if needs_text else "message.content is defined"
    original.chat_template = "{% for message in messages %}{{ " + test + " }} {% endfor %}"

    text = Tokenizer(original).render_chat([{"role": "user", "content": "x"}, {"role": "assistant", "content": None}])

    assert text == "True False "


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing", "is not a folder"), ("empty", "no tokenizer: expected one of"), ("bad", "is not JSON")],
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, name: str, problem: str) -> None:
    """Each cause has its own sentence."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tokenizer.json").write_text("{")

    with pytest.raises(ConfigurationError, match=problem):
        load_tokenizer(tmp_path / name)


def test_threads_may_share_a_tokenizer() -> None:
    """Encoding and decoding at once give what they give alone."""
    tokenizer = Tokenizer(byte_level())
    expected = tokenizer.encode("hello world " * 20)
    failures: list[object] = []

    def work() -> None:
        for _ in range(50):
            token_ids = tokenizer.encode("hello world " * 20)
            if token_ids != expected or tokenizer.decode(token_ids) != "hello world " * 20:
                failures.append(token_ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert not failures


def test_a_last_message_may_be_left_open() -> None:
    """As transformers does it: the template's end of the turn is cut off."""
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hell"}]
    tokenizer = Tokenizer(byte_level())

    text = tokenizer.render_chat(turns, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|user|>hello<|end|><|assistant|>hell"


def test_special_tokens_are_added_or_left_out_as_asked() -> None:
    """Those of the tokenizer's own: by default to a text, not to a conversation."""
    backend = byte_level()
    start = backend.convert_tokens_to_ids("<|system|>")
    backend.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A", special_tokens=[("<|system|>", start)]
    )
    tokenizer = Tokenizer(backend)
    turn = tokenizer.render_chat([{"role": "user", "content": "a"}])

    assert tokenizer.encode("a") == [start, *tokenizer.encode("a", add_special_tokens=False)]
    assert tokenizer.encode(turn) == [start, *tokenizer.encode(turn, add_special_tokens=False)]
    assert tokenizer.decode([start]) == ""
    assert tokenizer.decode([start], skip_special_tokens=False) == "<|system|>"


def test_a_folder_without_tokenizer_files_has_an_empty_digest(tmp_path: Path) -> None:
    """A node without a tokenizer is not compared."""
    (tmp_path / "config.json").write_text("{}")

    assert tokenizer_digest(tmp_path) == ""


def test_the_digest_is_32_hexadecimal_digits_and_depends_on_contents(tmp_path: Path) -> None:
    """Another byte, another digest."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ }")

    assert len(before) == 32
    assert int(before, 16) >= 0
    assert tokenizer_digest(tmp_path) != before


def test_the_chat_template_takes_part(tmp_path: Path) -> None:
    """The same vocabulary with another template makes other prompts."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(str(tmp_path))
    (tmp_path / "chat_template.jinja").write_text("x")

    assert tokenizer_digest(tmp_path) != before


def test_files_that_do_not_decide_about_tokens_do_not_count(tmp_path: Path) -> None:
    """Weights may change without another tokenizer."""
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "config.json").write_text("{}")

    assert tokenizer_digest(tmp_path) == before
