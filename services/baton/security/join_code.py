"""Codes of few words by which machines join: `7-orbit-candle-maple`, a number and what only the two sides know.

Both sides prove to each other that they know the words, by SPAKE2 (RFC 9382, package spake2, pure Python): who listens
learns nothing to try words against, and who stands between can let the exchange fail, no more. Each guess takes an
exchange, five wrong ones burn a code, and one in 8.6 billion is right.
"""

from __future__ import annotations

import difflib
import hmac
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

from baton.errors import AuthenticationError, ConfigurationError, OverloadedError
from baton.installation import install_line

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"codes to join need the package spake2: {install_line('agent')}") from missing

LIFETIME = timedelta(minutes=15)
MAX_GUESSES = 5
"""Wrong ones, after which nobody gets in by a code."""
_MAX_CODES = 64
"""That are remembered; one that has been used or has expired is, for its holder to be told."""
_REMEMBERED = timedelta(hours=1)
_NUM_WORDS = 3
_ROUTER = b"baton router"
_NONCE = bytes(12)  # each key seals one message
WRONG_CODE = "WRONG_CODE"


class JoinCode(NamedTuple):
    """A code in its parts: which one is meant, no secret, and its words with hyphens."""

    number: int
    words: str

    def __str__(self) -> str:
        return f"{self.number}-{self.words}"


@cache
def known_words() -> tuple[str, ...]:
    """Return the 2,048 words of BIP-39, no two of which begin with the same four letters."""
    return tuple((Path(__file__).parent / "words.txt").read_text("ascii").split())


def parse_code(text: str) -> JoinCode:
    """Return a code as typed, in any spacing or case; raise ConfigurationError naming a wrong word and a near one."""
    number, *words = re.split(r"[\s-]+", text.strip().lower())
    if not re.fullmatch(r"[1-9][0-9]{0,8}", number) or len(words) != _NUM_WORDS:
        raise ConfigurationError(
            f"code: expected a number and {_NUM_WORDS} words, as 7-orbit-candle-maple, got {text!r}"
        )
    for word in words:
        if word not in known_words():
            near = difflib.get_close_matches(word, known_words(), 1)
            raise ConfigurationError(
                f"code: {word!r} is no word of a code{f'; did you mean {near[0]}?' if near else ''}"
            )
    return JoinCode(int(number), "-".join(words))


class CodeExchange:
    """One side's part in an exchange of `element`s; both sides must have what the machine says, `newcomer`, alike."""

    def __init__(self, words: str, newcomer: bytes, *, is_router: bool) -> None:
        side = SPAKE2_B if is_router else SPAKE2_A
        self._side = side(words.encode("ascii"), idA=newcomer, idB=_ROUTER)
        self.element: bytes = self._side.start()
        self._key = b""

    def take(self, element: bytes) -> bytes:
        """Take the other side's element, or raise WRONG_CODE; return the proof that the machine shows to the router."""
        try:
            self._key = self._side.finish(element)
        except (SPAKEError, ValueError) as error:
            raise wrong_code() from error
        return hmac.digest(self._key, b"proof", "sha256")

    def seal(self, content: bytes) -> bytes:
        """Return a message that the other side alone can read. Once."""
        return AESGCM(hmac.digest(self._key, b"seal", "sha256")).encrypt(_NONCE, content, None)

    def unseal(self, content: bytes) -> bytes:
        """Return the router's message; raise WRONG_CODE if the other side has not sealed it."""
        try:
            return AESGCM(hmac.digest(self._key, b"seal", "sha256")).decrypt(_NONCE, content, None)
        except InvalidTag as error:
            raise wrong_code() from error


def wrong_code() -> AuthenticationError:
    """Return what everybody is told who does not know a code, whatever is wrong with theirs."""
    return AuthenticationError(
        "the code is wrong, or no longer holds: `baton invite` prints another", reason=WRONG_CODE
    )


@dataclass(slots=True)
class _Invitation:
    words: str
    expires_at: datetime
    num_wrong: int = 0
    used_by: str = ""


class Invitations:
    """The codes of a router, in memory: a restart forgets them. `taken` returns the names that machines have."""

    def __init__(self, taken: Callable[[], Collection[str]] = tuple) -> None:
        self._taken = taken
        self._of_number: dict[int, _Invitation] = {}
        self._last_number = secrets.randbelow(80) + 9  # another than after the last start, for the most part

    def create(self, now: datetime) -> tuple[JoinCode, datetime]:
        """Return another code, and until when it holds; raise OverloadedError if too many hold."""
        kept = {number: each for number, each in self._of_number.items() if now < each.expires_at + _REMEMBERED}
        if sum(now < each.expires_at and not each.used_by for each in kept.values()) >= _MAX_CODES:
            raise OverloadedError(f"{_MAX_CODES} codes hold that nobody has used; they end within {LIFETIME}")
        while len(kept) >= _MAX_CODES:
            del kept[next(number for number, each in kept.items() if each.used_by or now >= each.expires_at)]
        self._of_number = kept
        self._last_number += 1
        words = "-".join(secrets.choice(known_words()) for _ in range(_NUM_WORDS))
        self._of_number[self._last_number] = _Invitation(words, now + LIFETIME)
        return JoinCode(self._last_number, words), now + LIFETIME

    def words_of(self, number: int) -> str:
        """Return the words of a code; of one that is not there, some that nobody knows: its guesses fail alike."""
        invitation = self._of_number.get(number)
        return invitation.words if invitation else secrets.token_hex(16)

    def check(self, number: int, expected: bytes, shown: bytes) -> None:
        """Raise WRONG_CODE for another proof than is expected; the fifth burns the code."""
        invitation = self._of_number.get(number)
        is_right = hmac.compare_digest(expected, shown)
        if invitation is not None and is_right:
            return
        if invitation is not None:
            invitation.num_wrong += 1
            if invitation.num_wrong >= MAX_GUESSES:
                del self._of_number[number]
        raise wrong_code()

    def problem(self, number: int, node_id: str, now: datetime) -> str:
        """Return why a code does not let a machine in that has proved to know it; empty: it does."""
        invitation = self._of_number.get(number)
        remedy = "`baton invite` prints another"
        if invitation is None:
            return f"the code has been burnt by {MAX_GUESSES} wrong guesses: {remedy}"
        if invitation.used_by:
            return f"the code has been used by {invitation.used_by}: {remedy}"
        if now >= invitation.expires_at:
            return f"the code has expired at {invitation.expires_at:%H:%M} UTC: {remedy}"
        if node_id in self._taken():
            return f"a machine of the cluster is called {node_id} already: `--name` gives this one another name"
        return ""

    def use(self, number: int, node_id: str) -> None:
        """Let nobody else in by a code that `problem` finds none with."""
        self._of_number[number].used_by = node_id
