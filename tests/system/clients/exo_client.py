"""Asks Baton as exo's benchmark client asks exo: the same paths in the same order, the same fields read.

Source: bench/exo_bench.py and bench/harness.py of github.com/exo-explore/exo, read in 2026; nothing here is copied.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from system.cluster import Cluster

TIMEOUT_SECONDS = 60.0
SENSORS = ("gpuUsage", "temp", "sysPower", "pcpuUsage", "ecpuUsage")


class ExoError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:300]}")
        self.status = status


class ExoClient:
    """One connection per request, as exo's client makes it."""

    def __init__(self, cluster: Cluster) -> None:
        self._address = cluster.http_address

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the parsed body of an answer."""
        connection, response = self._ask(method, path + (f"?{urlencode(query)}" if query else ""), body)
        try:
            return json.loads(response.read())
        finally:
            connection.close()

    def lines(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of a streamed answer."""
        connection, response = self._ask("POST", path, {**body, "stream": True})
        try:
            for line in response:
                yield line.decode().strip()
        finally:
            connection.close()

    def part_of_state(self, path: str) -> Any:
        """Return a part of the state, None where it is not there."""
        try:
            return self.call("GET", f"/state/{path}")
        except ExoError as error:
            if error.status == 404:
                return None
            raise

    def model(self, name: str) -> str:
        """Return the full name of a model."""
        for entry in self.call("GET", "/models")["data"]:
            if name.lower() == entry["name"].lower() or name == entry["hugging_face_id"]:
                assert not entry["storage_size_megabytes"]  # else it would see to downloads
                return str(entry.get("hugging_face_id") or entry["name"])
        raise ValueError(name)

    def placements(self, model: str) -> list[dict[str, Any]]:
        """Return the previews that pass exo's filters, by default all but tensor and jaccl ones on one node."""
        chosen = []
        for preview in self.call("GET", "/instance/previews", model_id=model)["previews"]:
            meta, sharding = preview["instance_meta"].lower(), preview["sharding"].lower()
            is_known = ("ring" in meta or "jaccl" in meta) and ("pipeline" in sharding or "tensor" in sharding)
            if preview.get("error") is None and is_known and isinstance(preview["instance"], dict):
                num_nodes = len(content(preview["instance"])["shardAssignments"]["nodeToRunner"])
                if num_nodes > 1 or ("tensor" not in sharding and "jaccl" not in meta):
                    chosen.append(preview)
        return chosen

    def wait_ready(self, instance_id: str) -> None:
        """Wait until every runner of an instance is ready."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            instance = self.part_of_state(f"instances/{instance_id}")
            if instance is None:
                continue
            runners = content(instance)["shardAssignments"]["runnerToShard"]
            states = [self.part_of_state(f"runners/{runner}") or {} for runner in runners]
            assert not any("RunnerFailed" in state for state in states)
            if all("RunnerReady" in state for state in states):
                return
        raise TimeoutError(instance_id)

    def wait_gone(self, instance_id: str) -> None:
        """Wait until an instance is not found."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                self.call("GET", f"/instance/{instance_id}")
            except ExoError as error:
                if error.status == 404:
                    return
                raise
        raise TimeoutError(instance_id)

    def _ask(self, method: str, path: str, body: object) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_SECONDS)
        headers = {"accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        if response.status >= 400:
            text = response.read().decode()
            connection.close()
            raise ExoError(response.status, text)
        return connection, response


def content(instance: Mapping[str, Any]) -> Any:
    """Return what is below the one tag of an instance."""
    (inner,) = instance.values()
    return inner
