"""Which of several routers leads, by a Kubernetes Lease: one holds it, renews it, and leads until it has run out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from baton.discovery.api_server import CONFLICT, NOT_FOUND, ApiServer, RefusedError, own_api_server
from baton.errors import ConfigurationError, UnavailableError

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
"""After which another router leads where the holder says nothing; the holder itself stops before."""
_RENEW_SECONDS = _MARGIN_SECONDS = 2.0


class Lease:
    """A Lease of this pod's namespace, made where there is none. `run` keeps it; other pods' clocks do not matter."""

    def __init__(
        self,
        name: str,
        holder: str,
        server: Callable[[], ApiServer] = own_api_server,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._holder, self._server, self._clock = name, holder, server, clock
        self._held_until = -1.0
        self._seen, self._seen_at = ("", ""), 0.0

    @property
    def is_held(self) -> bool:
        """Whether this process leads."""
        return self._clock() < self._held_until

    async def run(self) -> None:
        """Take it once nobody else renews it, and renew it, until cancelled; then it is given back."""
        try:
            while True:
                await asyncio.to_thread(self.renew)
                await asyncio.sleep(_RENEW_SECONDS)
        finally:
            if self.is_held:
                self.renew(is_over=True)

    def renew(self, *, is_over: bool = False) -> None:
        """Take, renew or give back; blocks while the API server is asked. What fails is logged: another turn comes."""
        began = self._clock()
        try:
            server = self._server()
            path = f"/apis/coordination.k8s.io/v1/namespaces/{server.namespace}/leases"
            lease = self._read(server, f"{path}/{self._name}")
            spec = lease.setdefault("spec", {})
            seen = (spec.get("holderIdentity") or "", spec.get("renewTime") or "")
            if seen != self._seen:
                self._seen, self._seen_at = seen, began
            if seen[0] not in ("", self._holder) and began - self._seen_at <= LEASE_SECONDS:
                self._held_until = -1.0
                return
            spec["holderIdentity"] = "" if is_over else self._holder
            spec["leaseDurationSeconds"] = round(LEASE_SECONDS)
            spec["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            if "resourceVersion" in lease["metadata"]:
                server.ask(f"{path}/{self._name}", lease, method="PUT")
            else:
                server.ask(path, lease)
            if not self.is_held:
                log.info("leads lease=%s holder=%s", self._name, self._holder)
            self._held_until = -1.0 if is_over else began + LEASE_SECONDS - _MARGIN_SECONDS
        except (UnavailableError, ConfigurationError) as error:
            if not (isinstance(error, RefusedError) and error.status == CONFLICT):  # another one was quicker
                log.warning("lease_unknown cause=%r", str(error))

    def _read(self, server: ApiServer, path: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(server.ask(path))
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            metadata = {"name": self._name, "namespace": server.namespace}
            found = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        return found
