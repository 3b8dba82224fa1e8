"""The models of a gateway as nodes come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from baton.errors import (
    BatonError,
    InvalidFieldError,
    MismatchError,
    NotFoundError,
    StreamBrokenError,
    UnavailableError,
)
from baton.gateway.models.catalog import CatalogSettings, ModelCatalog
from baton.gateway.models.entry import PinnedModel
from baton.gateway.models.served_model import ModelText, describe
from baton.gateway.models.status import MODEL_LOADING, ModelStatus
from baton.internal.v1 import node_pb2
from baton.internal.v1.model_service_pb2 import (
    MODEL_STAGE_FAILED,
    MODEL_STAGE_FETCHING,
    MODEL_STAGE_STORED,
    ChangeModelRequest,
    DesiredModel,
    ListModelsResponse,
    MachineModel,
    ModelState,
)
from baton.internal.v1.router_service_pb2 import NodeState


class FakeTokenizer:
    """A tokenizer by its digest alone."""

    vocabulary_size = 100

    def __init__(self, digest: str) -> None:
        self.digest = digest


class FakeNodes:
    """A router whose nodes a test sets, and what they give of their tokenizers; counts how often it is asked."""

    def __init__(self) -> None:
        self.states: Sequence[NodeState] | BatonError = ()
        self.opened: list[tuple[str, str]] = []
        self.failure: BatonError | None = None
        self.gate: asyncio.Event | None = None
        self.models: Sequence[ModelState] | None = ()
        self.used: list[str] = []
        self.num_looks = self.num_slow_uses = 0

    async def list_models(self) -> ListModelsResponse | None:
        """Say what the planner says."""
        return None if self.models is None else ListModelsResponse(models=self.models)

    async def change_model(self, request: ChangeModelRequest) -> None:
        """Have a model loaded: here its node comes at once."""
        self.used.append(request.use)
        if len(self.used) <= self.num_slow_uses:
            return
        self.states = [*self.states, node(request.use)] if not isinstance(self.states, BatonError) else ()

    async def list_node_states(self) -> Sequence[NodeState]:
        """List, or fail."""
        self.num_looks += 1
        if isinstance(self.states, BatonError):
            raise self.states
        return self.states

    async def open(self, name: str, node: node_pb2.NodeDescription) -> ModelText:
        """Give a tokenizer with the digest that the node names."""
        self.opened.append((name, node.node_id))
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return text(node.tokenizer_digest)


def text(digest: str) -> ModelText:
    """Return what is needed of a model's text here: its digest."""
    stand_in: Any = FakeTokenizer(digest)
    return ModelText(stand_in, stand_in, stand_in)


def node(model: str, node_id: str = "", *, digest: str = "t1", adapters: Sequence[str] = (), **state: Any) -> NodeState:
    """Return a decode node of a model."""
    description = node_pb2.NodeDescription(
        node_id=node_id or f"node-{model}",
        role=node_pb2.NODE_ROLE_DECODE,
        model_id=model,
        model_shape=node_pb2.ModelShape(max_context_token_count=256),
        tokenizer_digest=digest,
        text_digest="0" * 32,
        adapters=[node_pb2.Adapter(name=name, digest="0" * 32) for name in adapters],
    )
    return NodeState(node=description, **state)


class Following:
    """A catalog that follows fake nodes, inside `async with`; `look` has it see them."""

    def __init__(self, nodes: FakeNodes, pinned: PinnedModel | None = None, **settings: Any) -> None:
        self.nodes = nodes
        router: Any = nodes
        self.catalog = ModelCatalog(router, nodes.open, CatalogSettings(0.001, **settings), pinned=pinned)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Following:
        self._task = asyncio.create_task(self.catalog.run())
        await self.look()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def look(self) -> None:
        """Return when the catalog has seen what the nodes are, and opened what it opens."""
        for _ in range(3):
            await self.catalog.refresh()
            await asyncio.sleep(0.005)

    async def ask(self, name: str) -> str:
        """Return which model and tokenizer answer for a name, or the error's type and reason."""
        try:
            model = await self.catalog.model(name)
        except BatonError as error:
            return f"{type(error).__name__} {error.reason}"
        return f"{model.name} {model.text.tokenizer.digest}" + (f" {model.adapter.name}" if model.adapter else "")


def follow(steps: Any, nodes: FakeNodes, **settings: Any) -> Any:
    """Run steps, given a catalog that follows nodes."""

    async def run() -> Any:
        async with Following(nodes, **settings) as following:
            return await steps(following)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("forget_seconds", "missed"), [(600.0, "b tb absent"), (1e-9, "NotFoundError MODEL_NOT_FOUND serving")]
)
def test_models_come_and_go_with_their_nodes(forget_seconds: float, missed: str) -> None:
    """Each with its own tokenizer; for one that is gone its nodes are waited for a while, and it may return."""
    nodes = FakeNodes()
    both = nodes.states = [node("a", digest="ta"), node("b", digest="tb", adapters=["b-x"])]

    async def steps(following: Following) -> list[str]:
        told = [await following.ask("a"), await following.ask("b"), await following.ask("b-x")]
        nodes.states = both[:1]
        await following.look()
        told += [f"{await following.ask('b')} {following.catalog.listed()[-1].status.stage}", await following.ask("a")]
        nodes.states = both
        await following.look()
        return [*told, await following.ask("b")]

    told = follow(steps, nodes, forget_seconds=forget_seconds)

    assert told == ["a ta", "b tb", "b tb b-x", missed, "a ta", "b tb"]
    assert [name for name, _ in nodes.opened] == (["a", "b"] if forget_seconds > 1 else ["a", "b", "b"])


def test_a_tokenizer_that_changes_is_opened_again_before_a_request_uses_it() -> None:
    """Tokens of the former one would mean something else to the nodes."""
    nodes = FakeNodes()
    nodes.states = [node("a", digest="old")]

    async def steps(following: Following) -> list[str]:
        told = [await following.ask("a")]
        nodes.gate = asyncio.Event()
        nodes.states = [node("a", digest="new")]
        await following.look()
        told.append(await following.ask("a"))
        nodes.gate.set()
        await following.look()
        return [*told, await following.ask("a")]

    assert follow(steps, nodes) == ["a old", f"UnavailableError {MODEL_LOADING}", "a new"]


def test_a_request_waits_for_a_model_that_is_being_opened() -> None:
    """No longer than it is told to; then it hears how far that is, and when to ask again."""
    nodes = FakeNodes()
    nodes.gate = asyncio.Event()
    nodes.states = [node("a")]

    async def steps(following: Following) -> str:
        assert nodes.gate is not None
        asking = asyncio.create_task(following.ask("a"))
        await following.look()
        assert not asking.done()
        nodes.gate.set()
        return await asking

    assert follow(steps, nodes, wait_seconds=30.0) == "a t1"


def test_a_tokenizer_that_does_not_come_is_asked_for_at_another_node() -> None:
    """Again and again, with the cause in the list of models; other models are served."""
    nodes = FakeNodes()
    nodes.failure = StreamBrokenError("it is torn")
    nodes.states = [node("a", "n1"), node("a", "n2")]

    async def steps(following: Following) -> list[str]:
        told = [await following.ask("a"), following.catalog.listed()[0].status.cause]
        nodes.failure = None
        await following.look()
        return [*told, await following.ask("a")]

    assert follow(steps, nodes) == [f"UnavailableError {MODEL_LOADING}", "it is torn", "a t1"]
    assert {node_id for _, node_id in nodes.opened} == {"n1", "n2"}


def test_aliases_stand_for_models_and_adapters() -> None:
    """Also where a model has their name; they are listed with what they stand for."""
    nodes = FakeNodes()
    nodes.states = [node("a", adapters=["a-x"]), node("b")]

    async def steps(following: Following) -> list[str]:
        rows = [f"{row.name}>{row.alias_of}>{row.root}" for row in following.catalog.listed() if row.alias_of]
        return [*[await following.ask(name) for name in ("fast", "tuned", "b", "away")], *rows]

    aliases = {"fast": "a", "tuned": "a-x", "b": "a", "away": "c"}
    told = follow(steps, nodes, aliases=aliases)

    assert told == [*("a t1", "a t1 a-x", "a t1", "NotFoundError MODEL_NOT_FOUND"), "b>a>a", "fast>a>a", "tuned>a-x>a"]


def test_an_unknown_name_is_told_the_nearest_ones() -> None:
    """However many models there are."""
    nodes = FakeNodes()
    nodes.states = [node(f"org/Model-{number}B") for number in range(1, 30)] + [node("qwen3-0.6b")]

    async def steps(following: Following) -> None:
        await following.catalog.model("Qwen3-0.6")

    with pytest.raises(NotFoundError, match=r"serves, 30 models, most like it `qwen3-0.6b`$"):
        follow(steps, nodes)


def test_an_unknown_name_is_told_none_that_does_not_answer() -> None:
    """A model that failed, or that nobody wants now, is no remedy."""
    nodes = FakeNodes()
    nodes.states = [node("lamb")]
    nodes.models = [
        ModelState(desired=DesiredModel(name="llama-1"), stage=MODEL_STAGE_FAILED),
        ModelState(desired=DesiredModel(name="llama-2", is_on_demand=True), stage=MODEL_STAGE_STORED),
    ]

    async def steps(following: Following) -> None:
        await following.catalog.model("llama")

    with pytest.raises(NotFoundError, match=r"this gateway serves `lamb`, `llama-2`$"):
        follow(steps, nodes)


def test_a_model_that_an_operator_forgets_is_unknown_once_its_nodes_have_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long others are remembered."""
    monkeypatch.setattr("baton.gateway.models.catalog._FORGOTTEN_SECONDS", 1e-9)
    nodes = FakeNodes()
    nodes.models = [ModelState(desired=DesiredModel(name=name), stage=MODEL_STAGE_FAILED) for name in "ab"]
    nodes.states = [node("b")]

    async def steps(following: Following) -> list[list[str]]:
        told = []
        nodes.models = []
        for nodes.states in ([node("b")], []):
            await following.look()
            told.append([each.name for each in following.catalog.listed()])
        return told

    assert follow(steps, nodes, forget_seconds=600.0) == [["b"], []]


def test_the_only_model_needs_no_name() -> None:
    """Of several, one must be named."""
    nodes = FakeNodes()
    nodes.states = [node("a")]

    async def steps(following: Following) -> str:
        told = await following.ask("")
        nodes.states = [node("a"), node("b")]
        await following.look()
        with pytest.raises(InvalidFieldError, match="model: expected one of a, b"):
            await following.catalog.model("")
        return told

    assert follow(steps, nodes) == "a t1"


def test_a_pinned_model_is_there_before_any_node_and_keeps_its_tokenizer() -> None:
    """Nodes with another one are no reason to use theirs; other models are served beside it."""
    nodes = FakeNodes()
    nodes.states = UnavailableError("no router")

    async def steps(following: Following) -> list[str]:
        (row,) = following.catalog.listed()
        told = [f"{row.name} {row.max_context_tokens}", await following.ask("mine")]
        nodes.states = [node("mine", digest="other"), node("b")]
        await following.look()
        told += [await following.ask("mine"), await following.ask("b")]
        nodes.states = [node("mine", digest="own")]
        await following.look()
        return [*told, await following.ask("mine"), await following.ask("")]

    told = follow(steps, nodes, pinned=PinnedModel("mine", text("own"), 640))

    mismatch = f"{MismatchError.__name__} MODEL_MISMATCH"
    assert told == ["mine 640", "UnavailableError NO_NODE", mismatch, "b t1", "mine own", "mine own"]
    assert [name for name, _ in nodes.opened] == ["b"]


def test_one_look_that_fails_tells_clients_nothing() -> None:
    """Requests that come meanwhile are placed a moment later; the second one in a row is told."""
    nodes, silence = FakeNodes(), UnavailableError("no router")
    router: Any = nodes

    async def problems() -> list[str]:
        catalog = ModelCatalog(router, nodes.open, CatalogSettings(), pinned=PinnedModel("m", text("t1")))
        told = []
        looks: list[Sequence[NodeState] | BatonError] = [silence, [node("m")], silence, [node("m")], silence, silence]
        for nodes.states in looks:
            await catalog.refresh()
            told.append(catalog.problem)
        return told

    assert asyncio.run(problems()) == ["no router", "", "", "", "", "no router"]


@pytest.mark.parametrize("tells", [True, False])
def test_clients_are_not_told_what_a_machine_says_of_a_model(tells: bool) -> None:
    """The last line of a worker has its paths. Without keys all are administrators."""
    nodes, problem = FakeNodes(), "mac: its worker ended with exit status 2: no folder-of-mine/a/config.json"
    nodes.models = [ModelState(desired=DesiredModel(name="a"), stage=MODEL_STAGE_FAILED, problem=problem)]
    nodes.states = [node("b", unusable_reason="draining")]

    async def steps(following: Following) -> list[str]:
        with pytest.raises(UnavailableError) as refused:
            await following.catalog.model("a")
        return [refused.value.message, following.catalog.told_problem, following.catalog.listed()[0].status.cause]

    refusal, ready, cause = follow(steps, nodes, tells_causes=tells)

    assert ("folder-of-mine" in refusal) == tells
    assert ("node-b" in ready) == tells
    assert "no decode node takes requests" in ready
    assert cause == problem


def test_a_gateway_is_ready_while_one_model_answers() -> None:
    """Or where a request may have one loaded; else the causes are told."""
    nodes = FakeNodes()
    nodes.states = [node("a"), node("b", unusable_reason="draining")]

    async def steps(following: Following) -> list[str]:
        told = [following.catalog.problem]
        nodes.states = [node("b", unusable_reason="draining")]
        await following.look()
        return [*told, following.catalog.problem]

    assert follow(steps, nodes) == ["", "no decode node serves a; no decode node takes requests: node-b: draining"]


def test_a_refusal_says_how_far_a_model_is() -> None:
    """In words, and for programs."""
    error = ModelStatus("fetching", 0.42, "", 12.6).refusal("big")

    assert error.message == "the model `big` does not answer yet (fetching, 42% done, about 13 s more)"
    assert error.metadata == {"retry_after_seconds": "13", "stage": "fetching", "progress": "0.420"}


@pytest.mark.parametrize(("own_tokens", "is_bound"), [(0, False), (256, False), (4096, True)])
def test_a_pool_that_is_smaller_than_the_models_context_is_told_of(own_tokens: int, is_bound: bool) -> None:
    """With its cause and the remedy; a node of another version does not tell the model's own."""
    state = node("m", "decode-0")
    state.node.model_context_token_count, state.node.block_count_cause = own_tokens, "num_blocks says so"

    model = describe("m", [state.node], text("t"))

    assert model.max_context_tokens == 256
    assert model.context_bound == (
        "The KV pool of node decode-0 holds 256 tokens (num_blocks says so), fewer than the 4096 that the model takes; "
        "a larger --num-blocks there raises it."
        if is_bound
        else ""
    )


def test_a_request_has_a_model_loaded_that_is_wanted_on_demand() -> None:
    """A hundred together ask as one, and wait for it; after it was unloaded, the next one asks again."""
    nodes = FakeNodes()
    nodes.models = [ModelState(desired=DesiredModel(name="big", is_on_demand=True), stage=MODEL_STAGE_STORED)]

    async def steps(following: Following) -> set[str]:
        told = {following.catalog.problem, following.catalog.listed()[0].status.stage}
        told |= set(await asyncio.gather(*(following.ask("big") for _ in range(100))))
        assert 1 <= len(nodes.used) < 50
        nodes.used.clear()
        nodes.states = ()
        await following.look()
        return told | {await following.ask("big")}

    assert follow(steps, nodes, wait_seconds=30.0) == {"", "stored", "big t1"}
    assert "big" in nodes.used


def test_a_request_that_waits_says_so_until_its_model_is_there() -> None:
    """The router counts on it: models that share a place take turns by who waits longest."""
    nodes = FakeNodes()
    nodes.num_slow_uses = 3
    nodes.models = [ModelState(desired=DesiredModel(name="big", is_on_demand=True), stage=MODEL_STAGE_STORED)]

    async def steps(following: Following) -> str:
        return await following.ask("big")

    assert follow(steps, nodes, wait_seconds=30.0) == "big t1"
    assert len(nodes.used) >= 4


def test_a_model_that_is_fetched_is_told_of_with_its_progress() -> None:
    """Of the machine that is farthest; it is never forgotten, and where no leader answers, nothing is news."""
    nodes = FakeNodes()
    machines = {
        name: MachineModel(name="big", stage=MODEL_STAGE_FETCHING, done_byte_count=done, total_byte_count=100)
        for name, done in (("a", 10), ("b", 42))
    }
    state = ModelState(desired=DesiredModel(name="big"), stage=MODEL_STAGE_FETCHING, machines=machines)
    state.ready_in.FromSeconds(30)
    nodes.models = [state]

    async def steps(following: Following) -> UnavailableError:
        nodes.models = None
        await following.look()
        with pytest.raises(UnavailableError) as refusal:
            await following.catalog.model("big")
        return refusal.value

    error = follow(steps, nodes, forget_seconds=1e-9)

    assert error.reason == MODEL_LOADING
    assert error.metadata == {"retry_after_seconds": "30", "stage": "fetching", "progress": "0.420"}
    assert nodes.used == []


def test_a_flood_for_a_name_that_nobody_serves_costs_the_router_next_to_nothing() -> None:
    """A thousand requests together look at its nodes once, not a thousand times."""
    nodes = FakeNodes()
    nodes.states = [node("a")]

    async def steps(following: Following) -> int:
        before = nodes.num_looks
        told = await asyncio.gather(*(following.ask("b") for _ in range(1000)))
        assert set(told) == {"NotFoundError MODEL_NOT_FOUND"}
        return nodes.num_looks - before

    assert follow(steps, nodes) < 500  # the catalog itself looks every millisecond here
