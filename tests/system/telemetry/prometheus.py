"""A real Prometheus, where one is installed, that scrapes a cluster under test."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from system.plan import HOST, free_ports

_START_SECONDS = 120.0
_TIMEOUT_SECONDS = 60.0


class Prometheus:
    """One server with a database in a folder of the test.

    Args:
        binary: The program.
        folder: Empty, for settings and data.
        targets: host:port of every page of metrics.
        rules: File of its rules.
    """

    def __init__(self, binary: str, folder: Path, targets: Sequence[str], rules: Path) -> None:
        self._port = free_ports(["prometheus"])["prometheus"]
        settings = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._log = folder / "prometheus.log"
        self._command = (
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
            "--enable-feature=exemplar-storage",
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """Return the result of an expression now; an assertion shows what is wrong with it."""
        answer = self._get("/api/v1/query", query=expression)
        assert answer["status"] == "success", answer
        result: Sequence[Mapping[str, Any]] = answer["data"]["result"]
        return result

    def exemplars(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """Return the examples of the last minutes of the series of an expression."""
        now = time.time()
        answer = self._get("/api/v1/query_exemplars", query=expression, start=str(now - 600), end=str(now))
        return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

    def down(self) -> Sequence[str]:
        """Return the targets that cannot be scraped, with what is wrong."""
        targets = self._get("/api/v1/targets")["data"]["activeTargets"]
        return [f"{each['scrapeUrl']}: {each['lastError']}" for each in targets if each["health"] != "up"]

    def suspected(self) -> Sequence[str]:
        """Return the names of alerts whose expression is true, for however short a time."""
        return [each["labels"]["alertname"] for each in self._get("/api/v1/alerts")["data"]["alerts"]]

    def _is_ready(self) -> bool:
        try:
            return self._request("/-/ready")[0] == http.client.OK
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        return json.loads(self._request(f"{path}?{urlencode(parameters)}")[1])

    def _request(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
