"""Tokenizers of Hugging Face folders, and their digest: text and conversations to tokens, tokens to pieces of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from baton.errors import ConfigurationError, InvalidFieldError
from baton.installation import install_line
from baton.text.tools import Tool

Message: TypeAlias = Mapping[str, object]
"""One message as chat templates know it: "role", mostly "content", and what else the role has."""

_TEMPLATE_CODE = re.compile(r"\{[{%].*?[}%]\}", re.DOTALL)
_WORD = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*(?![\w'\"])")
_RESERVED_NAMES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template")
)
"""What a request decides by other fields, or not at all."""

TOKENIZER_FILES = (
    "chat_template.jinja",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
"""Files that take part in the tokenizer's digest, sorted."""
_FURTHER_FILES = ("added_tokens.json", "chat_template.json", "config.json", "merges.txt", "vocab.json", "vocab.txt")
TEXT_FILES = tuple(sorted((*TOKENIZER_FILES, *_FURTHER_FILES)))
"""All that a gateway needs of a model's folder: tokenizer, chat template, configuration; none of it weights."""

_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_DIGEST_BYTES = 16
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A tokenizer with its chat template; encoding and decoding may be called from any thread.

    Wraps a transformers tokenizer, so that a prompt is tokenized exactly as transformers tokenizes it.
    """

    def __init__(self, hugging_face_tokenizer: Any, *, digest: str = "") -> None:
        self._tokenizer = hugging_face_tokenizer
        self._backend = getattr(hugging_face_tokenizer, "backend_tokenizer", None)
        self.digest = digest
        """Digest of the tokenizer's files (`tokenizer_digest`); empty if it was not loaded from files."""
        self.vocabulary_size: int = len(hugging_face_tokenizer)
        """Number of token ids, added tokens included."""
        self.special_token_ids = frozenset(_special_token_ids(hugging_face_tokenizer, self._backend))
        """Tokens that have no text."""
        if self._backend is not None:
            # Otherwise the first call would change the shared backend while another thread reads it.
            self._backend.no_truncation()
            self._backend.no_padding()

    @cached_property
    def template(self) -> str:
        """Return the source of the chat template, of all if there are several; empty if there is none."""
        template = getattr(self._tokenizer, "chat_template", None) or ""
        return "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template)

    @cached_property
    def template_names(self) -> frozenset[str]:
        """Return the words in the code of the chat template: whatever it could read is among them."""
        return frozenset(word for code in _TEMPLATE_CODE.findall(self.template) for word in _WORD.findall(code))

    def special_tokens(self, names: Iterable[str]) -> dict[str, int]:
        """Return the ids of those names that are special tokens."""
        ids = {name: self._tokenizer.convert_tokens_to_ids(name) for name in names}
        return {name: token_id for name, token_id in ids.items() if token_id in self.special_token_ids}

    def single_token(self, text: str) -> int | None:
        """Return the token that a text is by itself; None if it takes several."""
        token_ids = self.encode(text, add_special_tokens=False)
        return token_ids[0] if len(token_ids) == 1 else None

    @property
    def decoder_type(self) -> str:
        """Return the kind of the backend's decoder, e.g. "ByteLevel" or "Metaspace"; empty if it is unknown."""
        decoder = getattr(self._backend, "decoder", None)
        return type(decoder).__name__ if decoder is not None else ""

    def serialized(self) -> str:
        """Return the whole in the format of tokenizer.json; raise ConfigurationError if it is of another library."""
        if self._backend is None:
            raise ConfigurationError("the model's tokenizer has no form as tokenizer.json")
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a plain text, with or without the special tokens that the tokenizer adds by itself."""
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return token_ids

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        template_variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return a conversation as the chat template writes it.

        `template_variables` are of `template_names`; `continue_final_message`: the last one is left open, to be
        continued, and no beginning of an answer follows. Raises InvalidFieldError if there is no template, or it
        refuses the messages or has no such variable.
        """
        if not getattr(self._tokenizer, "chat_template", None):
            raise InvalidFieldError("messages", "the model has no chat template; use text or tokens")
        if tools and "tools" not in self.template_names:
            raise InvalidFieldError("tools", "the chat template of this model knows no tools")
        for name in template_variables or ():
            if name not in self.template_names or name in _RESERVED_NAMES:
                raise InvalidFieldError(f"chat_template_kwargs.{name}", "the chat template has no such variable")
        import jinja2

        # Some templates, Qwen3's first one among them, read the text of a message that has calls alone.
        written = [{**message, "content": message.get("content") or ""} for message in messages]
        is_silent = any(message.get("content") is None for message in messages)
        for turns in (list(map(dict, messages)), written) if is_silent else (written,):
            try:
                text: str = self._tokenizer.apply_chat_template(
                    turns,
                    tools=[tool.definition for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **(template_variables or {}),
                )
                return text
            except (jinja2.TemplateError, TypeError, ValueError) as error:
                refusal = error
        raise InvalidFieldError("messages", f"the chat template refused them: {refusal}") from refusal

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, special tokens left out or written as their names."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def piece(self, token_id: int) -> str | None:
        """Return a token as the vocabulary writes it, e.g. "Ġthe", "▁the", "<0x0A>"; None if the id is not in it."""
        piece = self._tokenizer.convert_ids_to_tokens(token_id) if 0 <= token_id < self.vocabulary_size else None
        return piece if isinstance(piece, str) else None

    def byte_of_piece(self, token_id: int) -> int | None:
        """Return the byte that a byte-fallback token such as "<0x0A>" stands for, or None for other tokens."""
        if self.decoder_type == "ByteLevel":
            return None
        match = _BYTE_TOKEN.fullmatch(self.piece(token_id) or "")
        return int(match[1], 16) if match else None


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a folder's tokenizer, without downloads or foreign code; raise ConfigurationError if it cannot be read."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError(f"model_dir: {path} is not a folder")
    check_tokenizer_files(path)
    digest = tokenizer_digest(path)
    try:
        tokenizer_class = _tokenizer_class(path)
    except ImportError as error:
        raise ConfigurationError(f"tokenizers need transformers: {install_line('gateway')}") from error
    try:
        loaded = tokenizer_class.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its parsers raise; all of them mean the same here
        raise ConfigurationError(f"model_dir: cannot load the tokenizer of {path}: {error}") from error
    return Tokenizer(loaded, digest=digest)


def check_tokenizer_files(folder: Path) -> None:
    """Check without loading it that a folder holds a tokenizer; raise ConfigurationError if it holds none."""
    if not any((folder / name).is_file() for name in _VOCABULARY_FILES):
        raise ConfigurationError(
            f"model {folder}: no tokenizer: expected one of {', '.join(_VOCABULARY_FILES)}; copy the model's files here"
        )
    file = folder / "tokenizer.json"
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {"model": {}}
    except ValueError as error:
        raise ConfigurationError(f"model {folder}: tokenizer.json is not JSON: {error}; fetch it again") from error
    if not isinstance(content, dict) or "model" not in content:
        raise ConfigurationError(f"model {folder}: tokenizer.json has no `model`: it is no tokenizer")


def tokenizer_digest(folder: str | Path, names: Sequence[str] = TOKENIZER_FILES) -> str:
    """Return the digest of a model folder's tokenizer files: 32 hexadecimal digits, or "" if it has none of them.

    The digest covers names, sizes and contents, so that neither a renamed file nor bytes moved between two go
    unnoticed. That of all files which a gateway needs is the same function of `TEXT_FILES`.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    has_files = False
    for name in names:
        path = Path(folder) / name
        if not path.is_file():
            continue
        contents = path.read_bytes()
        digest.update(f"{name}\0{len(contents)}\0".encode())
        digest.update(contents)
        has_files = True
    return digest.hexdigest() if has_files else ""


def context_tokens_of(folder: Path) -> int:
    """Return the longest sequence of a folder's model by its config.json; 0 if that does not say."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        given = config.get("max_position_embeddings") or config["text_config"]["max_position_embeddings"]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return 0
    return given if isinstance(given, int) else 0


def _tokenizer_class(path: Path) -> Any:
    """Return the class that loads a folder.

    AutoTokenizer imports torch wherever it is installed: seconds at the start of a process that has no other use for
    it. A folder that names the generic class says that tokenizer.json is all there is, and needs no search.
    """
    try:
        config = json.loads((path / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        config = {}
    if isinstance(config, dict) and config.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in config:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _special_token_ids(tokenizer: Any, backend: Any) -> list[int]:
    if backend is None:
        return list(tokenizer.all_special_ids)
    return [token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special]
