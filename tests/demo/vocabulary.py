"""Defines the demo model's tokens: five markers, then the 256 bytes.

Letters and digits stay separate tokens, which makes reversing, copying and adding learnable for a small model, and any
text round-trips. Encoding is therefore arithmetic on bytes, as the checkpoint's tokenizer.json has it.
"""

PAD = "<|pad|>"
END = "<|end|>"
"""Ends every message; the model's end-of-sequence token."""
ROLES = ("system", "user", "assistant")
MARKERS = (PAD, END, *(f"<|{role}|>" for role in ROLES))
"""Special tokens in the order of their ids, from 0."""

PAD_ID = MARKERS.index(PAD)
END_ID = MARKERS.index(END)
NUM_TOKENS = len(MARKERS) + 256


def role_id(role: str) -> int:
    """Return the id of the marker that opens a message of this role.

    Raises:
        ValueError: If the role is not one of `ROLES`.
    """
    return MARKERS.index(f"<|{role}|>")


def encode_text(text: str) -> list[int]:
    """Return one token id per UTF-8 byte of the text; markers in the text are not recognised."""
    return [byte + len(MARKERS) for byte in text.encode()]
