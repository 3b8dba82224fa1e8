"""ModelService: what is wanted, how it stands, and the streams of agents."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc

from baton.errors import BatonError, ForbiddenError, InvalidFieldError, NotFoundError, UnavailableError
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1 import model_service_pb2_grpc as service
from baton.internal.v1.model_service_pb2 import DesiredModel
from baton.router.models.agent_session import AgentSession
from baton.router.models.desired import check_desired
from baton.router.models.supervision import ModelSupervision
from baton.security.access import MAX_CLOCK_LEAD_NANOSECONDS, Party, current_caller
from baton.wire.quantities import profile_from_proto, shape_from_proto

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["ModelService"].full_name
_MACHINE_ID = re.compile(r"[a-z0-9-]{1,63}")
_MAX_MODELS = 1024
"""Of one machine."""

_Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class ModelServicer(service.ModelServiceServicer):
    """Answers for the router that leads."""

    def __init__(self, supervision: ModelSupervision) -> None:
        self._supervision = supervision

    async def ListModels(self, _request: messages.ListModelsRequest, _context: _Context) -> messages.ListModelsResponse:  # noqa: N802
        """Say how all models stand."""
        self._check_leads()
        return self._supervision.listed()

    async def ChangeModel(  # noqa: N802 - named by the proto
        self, request: messages.ChangeModelRequest, _context: _Context
    ) -> messages.ChangeModelResponse:
        """Change what is wanted."""
        self._check_leads()
        wanted, forecast = self._changed(request), list[str]()
        if request.is_dry_run:
            check_desired(wanted)
            forecast = await self._supervision.forecast(wanted)
        elif request.WhichOneof("change") == "forget":
            self._supervision.forget(wanted.name)
        elif request.WhichOneof("change") != "use":
            self._supervision.want(wanted)
        return messages.ChangeModelResponse(model=self._supervision.state_of(wanted.name), forecast=forecast)

    async def Supervise(  # noqa: N802
        self, request_iterator: AsyncIterator[messages.SuperviseRequest], _context: _Context
    ) -> AsyncIterator[messages.SuperviseResponse]:
        """Take an agent's reports, and give it orders, until either side ends."""
        self._check_leads()
        session = AgentSession()
        # No TaskGroup: this is a generator, and a group would cancel whoever awaits it between two responses.
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            async for orders in session.sent():
                yield orders
        finally:
            self._supervision.drop(session)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, session: AgentSession, reports: AsyncIterator[messages.SuperviseRequest]) -> None:
        try:
            async for report in reports:
                _check(report, session.report.machine_id)
                current_caller().check_speaks_for(report.machine_id)
                self._supervision.take(session, report)
            session.end()
        except BatonError as error:
            session.end(error)

    def _changed(self, request: messages.ChangeModelRequest) -> DesiredModel:
        """Return what is wanted of the model from now on; a use is noted."""
        kind = request.WhichOneof("change")
        if kind == "use":
            return self._used(request.use)
        if kind in ("unload", "forget"):
            wanted = DesiredModel()
            wanted.CopyFrom(self._wanted(request.unload or request.forget))
            wanted.is_unloaded = True
        elif kind == "pin":
            wanted = DesiredModel()
            wanted.CopyFrom(self._wanted(request.pin.name))
            del wanted.pinned_machines[:], wanted.excluded_machines[:]
            wanted.pinned_machines.extend(request.pin.pinned_machines)
            wanted.excluded_machines.extend(request.pin.excluded_machines)
        elif kind == "load":
            wanted = request.load
            if not wanted.source:
                wanted.source = self._wanted(wanted.name).source
        else:
            raise InvalidFieldError("change", "expected load, use, unload, forget or pin")
        if current_caller().party is Party.GATEWAY and kind == "pin":
            raise ForbiddenError("a gateway moves no model")
        return wanted

    def _used(self, name: str) -> DesiredModel:
        wanted = self._wanted(name)
        if not wanted.is_on_demand or wanted.is_unloaded:
            problem = f"the model {name!r} is loaded by an administrator, not by a request"
            raise ForbiddenError(problem, reason="NOT_ON_DEMAND")
        self._supervision.note_use(name)
        return wanted

    def _wanted(self, name: str) -> DesiredModel:
        if wanted := self._supervision.desired.get(name):
            return wanted
        names = ", ".join(each.name for each in self._supervision.desired) or "none"
        problem = (
            f"no model {name[:200]!r} is known; known are {names}, others are loaded by their folder or as org/name"
        )
        raise NotFoundError(problem, reason="MODEL_NOT_FOUND")

    def _check_leads(self) -> None:
        if not self._supervision.desired.lead():
            raise UnavailableError("another router leads: ask that one", reason="NOT_LEADER")


def _check(report: messages.SuperviseRequest, known_id: str) -> None:
    """Raise InvalidFieldError for what plans for all machines could not be made with."""
    if not _MACHINE_ID.fullmatch(report.machine_id) or known_id not in ("", report.machine_id):
        raise InvalidFieldError("machine_id", "expected 1 to 63 characters of a-z 0-9 -, the same in all reports")
    if report.epoch > time.time_ns() + MAX_CLOCK_LEAD_NANOSECONDS:
        raise InvalidFieldError("epoch", f"no router has ordered anything by {report.epoch}, more than a day from now")
    if len(report.models) > _MAX_MODELS:
        raise InvalidFieldError("models", f"expected {_MAX_MODELS} at most, got {len(report.models)}")
    for model in report.models:
        if min(model.weight_byte_count, model.held_byte_count, model.done_byte_count, model.total_byte_count) < 0:
            raise InvalidFieldError("models", f"{model.name[:100]!r}: expected numbers of bytes, 0 or more")
        if model.HasField("shape"):
            shape_from_proto(model.shape, field="models.shape")
    if report.HasField("profile"):
        profile_from_proto(report.profile)
