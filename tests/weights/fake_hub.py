"""A hub on this machine, as huggingface_hub asks one: revisions, trees, files by ranges; with faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What it has, and what was asked of it."""

    files: Mapping[str, bytes]
    """Of its one repository."""
    repository: str = "org/tiny"
    token: str = ""
    """That opens the repository; empty: it is open."""
    is_gated: bool = False
    """Whether those without the token are told of terms."""
    cut_at: dict[str, int] = field(default_factory=dict)
    """Bytes of a file after which its connection ends, once."""
    held_at: dict[str, tuple[int, threading.Event]] = field(default_factory=dict)
    """Bytes of a file after which no more come before something happens."""
    status: int = 0
    """Answer to everything; 0: as it should be."""
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    sent_bytes: int = 0
    """Of files."""

    @property
    def file_requests(self) -> list[str]:
        """Return the requests for files' content."""
        return [each for each in self.asked if each.startswith("GET") and "/resolve/" in each]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Run a hub."""

    class _Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(is_head=True)

        def do_GET(self) -> None:
            self._answer(is_head=False)

        def log_message(self, *_arguments: object) -> None:
            pass

        def _answer(self, *, is_head: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            self._answer_path(path, is_head=is_head)

        def _answer_path(self, path: str, *, is_head: bool) -> None:
            rest = path.split(hub.repository, 1)[-1].strip("/").split("/")
            name = "/".join(rest[2:])
            if hub.status:
                self._send(hub.status, b"", {})
            elif f"/{hub.repository}" not in path:
                self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            elif hub.token and self.headers.get("Authorization", "").removeprefix("Bearer ") != hub.token:
                self._send(401, b"", {"X-Error-Code": "GatedRepo" if hub.is_gated else "RepoNotFound"})
            elif rest[0] in ("revision", "tree", "resolve") and rest[1] not in ("main", COMMIT):
                self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            elif rest[0] in ("", "revision"):
                self._json({"id": hub.repository, "sha": COMMIT, "siblings": []})
            elif rest[0] == "tree":
                self._json([_entry(file, content) for file, content in hub.files.items()])
            elif name not in hub.files:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._file(name, hub.files[name], is_head=is_head)

        def _file(self, name: str, content: bytes, *, is_head: bool) -> None:
            begin = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            if is_head:
                self._send(200, b"", {**headers, "Content-Length": str(len(content))})
                return
            cut = hub.cut_at.pop(name, None)
            part = content[begin:cut]
            hub.sent_bytes += len(part)
            held = hub.held_at.get(name)
            first = part[: max(0, held[0] - begin)] if held else part
            self._send(206 if begin else 200, first, {**headers, "Content-Length": str(len(content) - begin)})
            if held:
                held[1].wait(60)
                self.wfile.write(part[len(first) :])
            self.close_connection = cut is not None

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _entry(name: str, content: bytes) -> Mapping[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    entry = {"type": "file", "path": name, "size": len(content), "oid": digest[:40]}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 100}
    return entry
