"""API keys: who may ask, from a file that may change while the gateway runs."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from baton.errors import AuthenticationError, ConfigurationError

log = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0
"""Pause between looks at the file."""

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,64}):\s*(?P<key>[!-~]{1,512})(?P<admin>\s+admin)?(\s+weight=(?P<weight>\d{1,4}))?"
)
_MAX_WEIGHT = 1000

EARLIEST_PRIORITY = -100
"""The first of all turns; administrators may have it."""


class ApiKey(NamedTuple):
    """What is known of a key; the key itself is forgotten."""

    name: str
    is_admin: bool
    """Whether it may ask what is about the cluster rather than about the model."""
    digest: bytes = b""
    """By which it is known again; empty where there are no keys."""
    earliest_priority: int = EARLIEST_PRIORITY
    """Of its requests: an earlier one is taken for this."""
    weight: int = 1
    """Of its owner's share beside others, 1 to 1000."""


class _Stamp(NamedTuple):
    """What tells one state of a file from another; Kubernetes replaces a mounted secret by another file."""

    modified_nanoseconds: int
    inode: int
    num_bytes: int


class ApiKeys:
    """The keys of one file.

    The file has one `name:key` per line, with ` admin` behind it for an administrator's, then ` weight=N` where the
    name's share beside others is not 1; `#` begins a comment line. A name may have several keys, for the time in which
    one replaces another; they have one weight. Invariant: there is always the last good
    state of the file; a bad one changes nothing.
    """

    def __init__(self, path: Path, *, earliest_priority: int = 0) -> None:
        self._path, self._earliest_priority = path, earliest_priority
        self._secret = secrets.token_bytes(32)
        self._keys: dict[bytes, ApiKey] = {}
        self._stamp: _Stamp | None = None
        self._problem = ""

    def load(self) -> None:
        """Read the file, or raise ConfigurationError for a line that is none, of which it quotes nothing."""
        try:
            self._stamp = _stamp(self._path)
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"api_keys_file: cannot read {self._path}: {error}") from error
        self._keys = self._parse(text)

    def authenticate(self, headers: Mapping[str, str]) -> ApiKey:
        """Return the key that a request shows.

        Names of headers are lower-case; the key is the bearer token of `authorization`, or `x-api-key`. Raises
        AuthenticationError if it shows none, or one that is not in the file.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
        if not shown:
            raise AuthenticationError("an API key is needed: send it as `Authorization: Bearer KEY`")
        digest, found = self._digest(shown), None
        for known, key in self._keys.items():  # all of them, so that the time tells nothing of which was close
            if hmac.compare_digest(digest, known):
                found = key
        if found is None:
            raise AuthenticationError("the API key is not known here")
        return found

    def knows(self, key: ApiKey) -> bool:
        """Return whether a key that was shown is still in the file."""
        return key.digest in self._keys

    async def watch(self, on_look: Callable[[], None]) -> None:
        """Read the file again whenever it has changed, for ever. `on_look` is called after every look at the file."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(self.reload)
            on_look()

    def reload(self) -> None:
        """Read the file if it has changed; if it cannot be used, say so once and keep the keys there are."""
        try:
            if _stamp(self._path) == self._stamp:
                return
            self.load()
        except (OSError, ConfigurationError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("api_keys_kept file=%s error=%r", self._path, self._problem)
            return
        self._problem = ""
        log.info("api_keys_loaded file=%s keys=%d", self._path, len(self._keys))

    def _parse(self, text: str) -> dict[bytes, ApiKey]:
        keys: dict[bytes, ApiKey] = {}
        weights: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise ConfigurationError(f"api_keys_file: line {number} of {self._path} is not `name:key`")
            weight = int(match["weight"] or 1)
            if not 1 <= weight <= _MAX_WEIGHT or weights.setdefault(match["name"], weight) != weight:
                expected = f"a weight of 1 to {_MAX_WEIGHT}, the same for all keys of a name"
                raise ConfigurationError(f"api_keys_file: line {number} of {self._path}: expected {expected}")
            digest = self._digest(match["key"])
            if digest in keys:
                raise ConfigurationError(f"api_keys_file: line {number} of {self._path} repeats a key")
            is_admin = match["admin"] is not None
            priority = EARLIEST_PRIORITY if is_admin else self._earliest_priority
            keys[digest] = ApiKey(match["name"], is_admin, digest, priority, weight)
        if not keys:
            raise ConfigurationError(f"api_keys_file: {self._path} has no keys")
        return keys

    def _digest(self, key: str) -> bytes:
        return blake2b(key.encode(), key=self._secret, digest_size=32).digest()


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(status.st_mtime_ns, status.st_ino, status.st_size)
