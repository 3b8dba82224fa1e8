"""The models that a gateway serves: those of the cluster's nodes as they come and go, and one that may be pinned.

Each is asked for by its name, by that of an adapter, or by an alias of either.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from baton.errors import BatonError, InvalidFieldError, UnavailableError
from baton.gateway.cluster.router_client import NO_NODE, RouterClient
from baton.gateway.models.entry import CatalogEntry, PinnedModel
from baton.gateway.models.served_model import ModelText, ServedModel
from baton.gateway.models.status import ModelStatus, status_of, unknown_model
from baton.internal.v1.model_service_pb2 import ChangeModelRequest
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import NodeState
from baton.wire.node_roles import decodes
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)

_SECOND_LOOK_SECONDS = 0.5
"""After a look that failed, until the next: a router that is just being replaced is no reason to leave."""
_FRESH_SECONDS = 0.05
"""For which a look is not repeated, however many requests ask for what is not served."""
_FORGOTTEN_SECONDS = 10.0
"""Without a node, after which a model that an operator has had forgotten is no longer known."""
_LATE_SECONDS = 0.02
"""After a node would have fallen silent, it is looked at."""
_NUMBER = re.compile(r"[0-9.]+")
"""In a problem: seconds of silence grow without being news."""
_MOST_CHARACTERS = 500
"""Of a problem."""

OpenText: TypeAlias = Callable[[str, NodeDescription], Awaitable[ModelText]]
"""Returns what a node gives to make text of its model's tokens; the model's name is for logs."""


class CatalogSettings(NamedTuple):
    """How a catalog follows the cluster."""

    poll_seconds: float = 1.0
    """Pause between two looks at the nodes."""
    wait_seconds: float = 0.0
    """Longest time that a request waits for a model which is on its way."""
    forget_seconds: float = 600.0
    """Time without a node after which a model is no longer known, unless it is pinned or wanted."""
    aliases: Mapping[str, str] = {}
    """Names of models and adapters by further names for them."""
    tells_causes: bool = True
    """Whether everybody is an administrator: what machines say of a model that does not answer has their names, and
    paths."""


class ListedModel(NamedTuple):
    """A name that can be asked for."""

    name: str
    root: str
    """Name of the model that answers; of an alias or an adapter another one."""
    is_adapter: bool
    alias_of: str
    """Name that it stands for; empty: it is its own."""
    status: ModelStatus
    max_context_tokens: int
    """0: not known."""
    text: ModelText | None
    """None: no node has given it yet."""


class ModelCatalog:
    """Follows the router's nodes, opens and drops models with them, and tells nodes by `on_nodes` at every look."""

    def __init__(
        self,
        router: RouterClient,
        open_text: OpenText,
        settings: CatalogSettings,
        *,
        pinned: PinnedModel | None = None,
        on_nodes: Callable[[Collection[str]], None] = lambda _node_ids: None,
    ) -> None:
        """Know no node. A pinned model is there at once, tokenizers of others are opened as they come."""
        self._router, self._open_text = router, open_text
        self._settings, self._on_nodes = settings, on_nodes
        self._entries = {pinned.name: CatalogEntry(pinned.name, pinned, 0.0)} if pinned else {}
        self._served: Mapping[str, ServedModel] = {}
        self._wanted: Mapping[str, ModelStatus] = {}
        self._used_seconds: dict[str, float] = {}
        self._looked_seconds = -math.inf
        self._asking = asyncio.Lock()
        self._problem = "the router has not been reached yet"
        self._on_problem: Callable[[str], None] = lambda _problem: None
        self._is_closed = self._is_router_missed = self._has_looked = False
        self._heard_seconds = settings.poll_seconds
        self._news = asyncio.Event()

    @property
    def problem(self) -> str:
        """Return why requests cannot be served right now; empty if those for some model can."""
        return self._problem

    @property
    def told_problem(self) -> str:
        """Return `problem` as clients are told it, and strangers who ask whether the gateway is ready."""
        return self._problem if self._settings.tells_causes else self._problem.partition(": ")[0]

    def follow(self, on_problem: Callable[[str], None]) -> None:
        """Have a function told of `problem`, now and whenever it changes."""
        self._on_problem = on_problem
        on_problem(self._problem)

    def close(self, problem: str) -> None:
        """Have a problem for good: the gateway stops."""
        self._note(problem)
        self._is_closed = True

    async def run(self) -> None:
        """Look at the router's nodes for ever, and in between when the last of a model would have fallen silent."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._heard_seconds = self._settings.poll_seconds
                await self.refresh()
                for entry in self._entries.values():
                    if (source := entry.next_source) is not None:
                        entry.is_opening = True
                        tasks.create_task(self._open(entry, source))
                await asyncio.sleep(min(self._settings.poll_seconds, self._heard_seconds))

    async def refresh(self) -> None:
        """Look at the router's nodes once; a failure becomes `problem`, one by itself only if it took long."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            states, models = await self._router.list_node_states(), await self._router.list_models()
        except BatonError as error:
            if self._is_router_missed or self._problem or clock() - begun > _SECOND_LOOK_SECONDS:
                self._note(error.message)
            self._is_router_missed = True
            self._heard_seconds = min(self._heard_seconds, _SECOND_LOOK_SECONDS)
            return
        self._is_router_missed, self._has_looked, self._looked_seconds = False, True, clock()
        self._on_nodes({state.node.node_id for state in states})
        by_model: dict[str, list[NodeState]] = {}
        for state in states:
            if decodes(state.node):
                by_model.setdefault(state.node.model_id, []).append(state)
        now = clock()
        if models is not None:
            self._wanted = {each.desired.name: status_of(each) for each in models.models}
        for name in {**self._entries, **by_model, **self._wanted}:
            entry = self._entries.setdefault(name, CatalogEntry(name, None, now))
            entry.want(self._wanted.get(name))
            entry.take(by_model.get(name, ()), now)
            known_seconds = _FORGOTTEN_SECONDS if entry.was_wanted else self._settings.forget_seconds
            if not (entry.pinned or entry.wanted) and now - entry.seen_seconds > known_seconds:
                log.info("model_forgotten model=%s", name)
                del self._entries[name]
        heard = [_last_heard_seconds(each) for each in by_model.values()]
        self._heard_seconds = min((each for each in heard if each), default=self._heard_seconds)
        self._tell()

    async def model(self, name: str = "") -> ServedModel:
        """Return the model of a name, an adapter's or an alias included; that of the empty name is the only one.

        Waits for one that is on its way.

        Raises:
            InvalidFieldError: If there are several models, and none is named.
            NotFoundError: If nobody serves it; the error has the names that are most like it.
            UnavailableError: If it is known and does not answer yet.
            MismatchError: If the nodes have another tokenizer than the gateway.
        """
        found = self._served.get(name)
        return found if found is not None else await self._awaited(name)

    def check_name(self, name: str) -> None:
        """Check that a name is a model's own; raise NotFoundError if it is not."""
        if name not in self._entries:
            raise unknown_model(name, self._names())

    def listed(self) -> Sequence[ListedModel]:
        """Return all names that can be asked for: the pinned model first, then models by name, adapters, aliases."""
        entries = sorted(self._entries.values(), key=lambda entry: (entry.pinned is None, entry.name))
        rows = {entry.name: _listed(entry, entry.name, entry.served) for entry in entries}
        for entry in entries:
            for name in sorted(entry.adapted):
                rows.setdefault(name, _listed(entry, name, entry.adapted[name]))
        for alias, target in sorted(self._settings.aliases.items()):
            if target in rows:
                rows[alias] = rows[target]._replace(name=alias, alias_of=target)
        return list(rows.values())

    def root_of(self, name: str) -> str:
        """Return the name of the model that answers for a name; empty if none is known."""
        found = self._served.get(name)
        return found.name if found is not None else name if name in self._entries else ""

    async def _awaited(self, name: str) -> ServedModel:
        async with self._asking:
            if asyncio.get_running_loop().time() - self._looked_seconds > _FRESH_SECONDS:
                await self.refresh()
        name = self._settings.aliases.get(name, name)
        entry = self._entries.get(name)
        if entry is not None and entry.status.is_coming and name not in self._served:
            if entry.status.is_on_demand:
                await self._use(name)
            with suppress(TimeoutError, BatonError):
                async with asyncio.timeout(self._settings.wait_seconds):
                    while name not in self._served:
                        await self._news.wait()
                        if entry.status.is_on_demand and name not in self._served:
                            await self._use(name)  # still: models take turns by who waits longest
        if (found := self._served.get(name)) is not None:
            return found
        if entry is not None:
            raise entry.mismatch() or self._refusal(entry)
        if not self._entries or not (self._has_looked and any(each.served for each in self._entries.values())):
            raise UnavailableError(self.told_problem, reason=NO_NODE)
        if not name:
            raise InvalidFieldError("model", f"expected one of {', '.join(self._names())}")
        raise unknown_model(name, self._names())

    def _names(self) -> Sequence[str]:
        """Return the names that are answered, now or in a while; where none is, all."""
        rows = self.listed()
        usable = [each.name for each in rows if each.status.stage == "serving" or each.status.is_coming]
        return usable or [each.name for each in rows]

    async def _use(self, name: str) -> None:
        """Have a model loaded on demand; a hundred requests that come together ask once."""
        now = asyncio.get_running_loop().time()
        if now - self._used_seconds.get(name, -math.inf) >= self._settings.poll_seconds:
            self._used_seconds[name] = now
            await self._router.change_model(ChangeModelRequest(use=name))

    def _refusal(self, entry: CatalogEntry) -> UnavailableError:
        status = entry.status
        if self._is_router_missed or not self._has_looked:
            status = status._replace(cause=self.told_problem)
        elif not self._settings.tells_causes:
            status = status._replace(cause="")
        return status.refusal(entry.name)

    async def _open(self, entry: CatalogEntry, source: NodeDescription) -> None:
        try:
            entry.open(await self._open_text(entry.name, source))
        except BatonError as error:
            log.warning("tokenizer_not_opened model=%s node=%s cause=%r", entry.name, source.node_id, error.message)
            entry.open(None, error.message)
        except Exception as error:  # the edge of the task: other models are served on
            log.exception("tokenizer_not_opened model=%s node=%s", entry.name, source.node_id)
            entry.open(None, f"the tokenizer of {entry.name} cannot be opened: {type(error).__name__}")
        self._tell()

    def _tell(self) -> None:
        """Have requests see what has become known."""
        entries = [self._entries[name] for name in sorted(self._entries)]
        served = {entry.name: entry.served for entry in entries if entry.served is not None}
        for entry in entries:
            served = {**entry.adapted, **served}
        served |= {alias: served[target] for alias, target in self._settings.aliases.items() if target in served}
        only = next((entry for entry in entries if entry.pinned), entries[0] if len(entries) == 1 else None)
        if only is not None and only.served is not None:
            served[""] = only.served
        self._served = served
        self._news.set()
        self._news = asyncio.Event()
        problems = [entry.problem for entry in entries]
        is_able = not all(problems) or any(entry.wanted and entry.wanted.is_on_demand for entry in entries)
        nothing = "no node serves a model yet"
        self._note("" if is_able and entries else "; ".join(problems)[:_MOST_CHARACTERS] or nothing)

    def _note(self, problem: str) -> None:
        if problem == self._problem or self._is_closed:
            return
        if _NUMBER.sub("", problem) != _NUMBER.sub("", self._problem):
            log.info("catalog_changed models=%s problem=%r", ",".join(sorted(self._entries)) or "none", problem)
        self._problem = problem
        self._on_problem(problem)


def _listed(entry: CatalogEntry, name: str, model: ServedModel | None) -> ListedModel:
    own_tokens = entry.pinned.context_tokens if entry.pinned else 0
    max_context_tokens = model.max_context_tokens if model else own_tokens
    return ListedModel(name, entry.name, name != entry.name, "", entry.status, max_context_tokens, entry.text)


def _last_heard_seconds(states: Iterable[NodeState]) -> float:
    """Return when the last of a model's nodes that are heard would have fallen silent; 0: none is, or none says."""
    heard = [state.heard_for for state in states if state.HasField("heard_for") and not state.unusable_reason]
    seconds = max(map(seconds_from_duration, heard), default=0.0)
    return seconds + _LATE_SECONDS if seconds > 0 else 0.0
