"""What the leading router has with one agent: the last report, the orders, and the stream that takes them there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from baton.errors import BatonError
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import MachineModel, ModelOrder


class AgentSession:
    """The stream of one machine's agent."""

    def __init__(self) -> None:
        self.report = messages.SuperviseRequest()
        """The last one."""
        self.epoch = 0
        """Of the last orders."""
        self.orders: dict[str, ModelOrder] = {}
        self._orders: asyncio.Queue[messages.SuperviseResponse | None] = asyncio.Queue()
        self.error: BatonError | None = None

    @property
    def models(self) -> Mapping[str, MachineModel]:
        """Return what it says of each model."""
        return {model.name: model for model in self.report.models}

    def send(self, epoch: int, orders: dict[str, ModelOrder]) -> None:
        """Order what it shall have from now on."""
        self.epoch, self.orders = epoch, orders
        self._orders.put_nowait(messages.SuperviseResponse(epoch=epoch, orders=orders.values()))

    def end(self, error: BatonError | None = None) -> None:
        """End the stream."""
        self.error = error
        self._orders.put_nowait(None)

    async def sent(self) -> AsyncIterator[messages.SuperviseResponse]:
        """Yield orders until the stream ends."""
        while (orders := await self._orders.get()) is not None:
            yield orders
        if self.error:
            raise self.error
