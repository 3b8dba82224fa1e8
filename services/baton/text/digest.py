"""A name for the files that decide how text becomes tokens."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

TOKENIZER_FILES = (
    "chat_template.jinja",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
"""Files that take part, sorted."""

_DIGEST_BYTES = 16


def tokenizer_digest(folder: str | Path) -> str:
    """Return the digest of a model folder's tokenizer files: 32 hexadecimal digits, or "" if it has none of them.

    The digest covers names, sizes and contents, so that neither a renamed file nor bytes moved between two go
    unnoticed.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    has_files = False
    for name in TOKENIZER_FILES:
        path = Path(folder) / name
        if not path.is_file():
            continue
        contents = path.read_bytes()
        digest.update(f"{name}\0{len(contents)}\0".encode())
        digest.update(contents)
        has_files = True
    return digest.hexdigest() if has_files else ""
