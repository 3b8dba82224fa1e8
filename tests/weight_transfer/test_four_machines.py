"""Four machines, one hub: it gives each byte once, and the machines give it on while it arrives."""

from __future__ import annotations

import asyncio
import threading
from collections import namedtuple
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
from crc32c import crc32c

from baton.errors import ConfigurationError, UnavailableError
from baton.internal.v1 import weight_service_pb2 as messages
from baton.rpc.server import GrpcServer
from baton.weight_transfer.fetcher import bring_model, fetch_from
from baton.weight_transfer.pace import Pace
from baton.weight_transfer.service import SERVICE_NAME, WeightServicer
from baton.weights import store as store_module
from baton.weights.hub import FetchProgress, model_folder
from baton.weights.model_name import served_name_of
from baton.weights.store import WeightStore
from weights.fake_hub import COMMIT, FakeHub, serving
from weights.test_hub import FILES, WANTED, point_at

_TIMEOUT_SECONDS = 20.0
_WANTED_BYTES = sum(len(FILES[name]) for name in WANTED)


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a file of a megabyte travel in several pieces."""
    monkeypatch.setattr("baton.weight_transfer.service.PIECE_BYTES", 256 << 10)


class Counting(WeightServicer):
    """Counts what a machine gives."""

    num_bytes = 0
    asked_bytes = 0

    async def FetchFile(  # noqa: N802 - the name is the proto's
        self, request: messages.FetchFileRequest, context: object
    ) -> AsyncIterator[object]:
        """Give it, and count."""
        self.asked_bytes += request.end - request.begin
        async for piece in super().FetchFile(request, context):
            self.num_bytes += len(piece.content)
            yield piece


@asynccontextmanager
async def machine(
    store: WeightStore, folders: Mapping[str, Path] | None = None, pace: Pace | None = None, port: int = 0
) -> AsyncIterator[tuple[str, Counting]]:
    """Run the service of a machine; give its address."""
    servicer = Counting(folders or {}, pace or Pace(), store)
    server = GrpcServer(f"127.0.0.1:{port}")
    server.add(SERVICE_NAME, servicer.register)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}", servicer
    finally:
        await server.drain(0)


class Watch:
    """Is told of progress, and tells when so much has come."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self.told: list[FetchProgress] = []
        self.reached = asyncio.Event()

    def __call__(self, progress: FetchProgress) -> None:
        """Note it."""
        self.told.append(progress)
        if progress.done_bytes >= self._num_bytes:
            self.reached.set()


def ignore(_progress: FetchProgress) -> None:
    """Leave it."""


def folder_with(path: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """Return a folder with a model's files."""
    path.mkdir(parents=True)
    for name in files.keys() & set(WANTED):
        (path / name).write_bytes(files[name])
    return path


def contents(folder: Path) -> Mapping[str, bytes]:
    """Return the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FETCHED = {name: FILES[name] for name in WANTED}


def test_four_machines_take_each_byte_from_the_hub_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One asks the hub, three take it in a chain from each other before it has come; the hub sent all once."""
    stores = [WeightStore(tmp_path / f"machine{index}") for index in range(4)]
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)

    async def scenario(hub: FakeHub, more: threading.Event) -> list[Path]:
        monkeypatch.setenv("BATON_WEIGHTS_DIR", str(stores[0].folder))
        watches = [Watch(600_000) for _ in range(3)]
        async with (
            machine(stores[0]) as (first, _),
            machine(stores[1]) as (second, _),
            machine(stores[2]) as (third, _),
        ):
            from_hub = asyncio.create_task(asyncio.to_thread(model_folder, "org/tiny"))
            fetches = [
                asyncio.create_task(fetch_from([source], "org/tiny", store, watch))
                for source, store, watch in zip((first, second, third), stores[1:], watches, strict=True)
            ]
            for watch in watches:  # all three have it as far as the hub has given it
                await watch.reached.wait()
            assert not any(task.done() for task in (from_hub, *fetches))
            more.set()
            return [await task for task in (from_hub, *fetches)]

    with serving(FakeHub(FILES)) as hub:
        point_at(hub.url, tmp_path, monkeypatch)
        more = threading.Event()
        hub.held_at["a.safetensors"] = (700_000, more)
        folders = asyncio.run(asyncio.wait_for(scenario(hub, more), _TIMEOUT_SECONDS))

        assert hub.sent_bytes == _WANTED_BYTES
    assert [contents(folder) for folder in folders] == [FETCHED] * 4
    assert [served_name_of(folder) for folder in folders] == ["org/tiny"] * 4
    assert {folder.name for folder in folders} == {COMMIT}


def test_a_fetch_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    """The second attempt asks for what the first one had not got; what is here whole asks nobody."""
    source, target = WeightStore(tmp_path / "source"), WeightStore(tmp_path / "target")
    folder = folder_with(tmp_path / "tiny")

    async def scenario() -> None:
        gate = asyncio.Event()

        async def hold(_seconds: float) -> None:
            await gate.wait()

        ticks = iter([0.0] * 4)  # the first pieces pass
        pace = Pace(1, lambda: next(ticks, None) is None, sleep=hold)
        async with machine(source, {"tiny": folder}, pace) as (address, _):
            watch = Watch(1)
            fetch = asyncio.create_task(fetch_from([address], "tiny", target, watch))
            await watch.reached.wait()
            fetch.cancel()
            with suppress(asyncio.CancelledError):
                await fetch
            kept = sum(target.held_bytes(file) for file in target.manifests()[0].files)
            gate.set()
        async with machine(source, {"tiny": folder}) as (address, again):
            found = await fetch_from([address], "tiny", WeightStore(target.folder), ignore)

            assert contents(found) == FETCHED
            assert kept > 0
            assert again.asked_bytes == _WANTED_BYTES - kept
            assert await fetch_from([address], "tiny", target, ignore) == found
            assert again.asked_bytes == _WANTED_BYTES - kept

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


def test_a_source_that_comes_back_is_asked_for_the_rest(tmp_path: Path) -> None:
    """Its process was killed within a file: the fetch waits for another one, and goes on."""
    target, folder = WeightStore(tmp_path / "target"), folder_with(tmp_path / "tiny")

    async def scenario() -> None:
        async def never(_seconds: float) -> None:
            await asyncio.Event().wait()

        ticks = iter([0.0] * 4)
        pace = Pace(1, lambda: next(ticks, None) is None, sleep=never)
        watch = Watch(1)
        async with machine(WeightStore(tmp_path / "source"), {"tiny": folder}, pace) as (address, _):
            fetch = asyncio.create_task(fetch_from([address], "tiny", target, watch))
            await watch.reached.wait()
        port = int(address.rpartition(":")[2])
        async with machine(WeightStore(tmp_path / "source"), {"tiny": folder}, port=port) as (_, second):
            assert contents(await fetch) == FETCHED
            assert 0 < second.num_bytes < _WANTED_BYTES

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


@pytest.mark.parametrize("where", ["disk", "wire"])
def test_one_flipped_bit_is_refused_and_another_source_asked(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a source's disk the file's digest tells, on the way a piece's checksum; the source is named."""
    good, bad = folder_with(tmp_path / "good/tiny"), folder_with(tmp_path / "bad/tiny")

    class Flipping(Counting):
        async def FetchFile(  # noqa: N802 - the name is the proto's
            self, request: messages.FetchFileRequest, context: object
        ) -> AsyncIterator[object]:
            async for piece in super().FetchFile(request, context):
                yield messages.FetchFileResponse(
                    content=bytes([piece.content[0] ^ 1]) + piece.content[1:], content_crc32c=piece.content_crc32c
                )

    async def scenario() -> None:
        stores = [WeightStore(tmp_path / name) for name in ("first", "second", "target")]
        manifest = stores[0].adopt("tiny", "", bad)
        assert manifest == stores[1].adopt("tiny", "", good)
        if where == "disk":
            flip(bad / "a.safetensors", 500_000)
        else:
            monkeypatch.setitem(globals(), "Counting", Flipping)
        stores[0].adopt = lambda *_: manifest  # type: ignore[method-assign] # as hashed before the disk failed
        async with machine(stores[0], {"tiny": bad}) as (address, _):
            monkeypatch.undo() if where == "wire" else None
            async with machine(stores[1], {"tiny": good}) as (other, _):
                found = await fetch_from([address, other], "tiny", stores[2], ignore)

                assert contents(found) == FETCHED
                cause = "weights_refused sources=" if where == "disk" else "weights_lost source="
                assert f"{cause}{address} file=a.safetensors" in caplog.text
                assert f"{cause}{other}" not in caplog.text
            with pytest.raises(UnavailableError, match=rf"tiny: a.safetensors: .*{address}: .*digest|another checksum"):
                await fetch_from([address], "tiny", WeightStore(tmp_path / "late"), ignore, patience_seconds=0)

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_a_machine_that_got_its_part_only_says_so(tmp_path: Path) -> None:
    """A killed fetch leaves a part: who follows it is not kept waiting, and another one is asked."""
    half, target = WeightStore(tmp_path / "half"), WeightStore(tmp_path / "target")
    folder = folder_with(tmp_path / "tiny")
    manifest = WeightStore(tmp_path / "whole").adopt("tiny", "", folder)
    half.begin(manifest, {})
    for file in manifest.files:
        with half.receive(file, waits=False) as arriving:
            assert arriving is not None
            arriving.write(FILES[file.name][: file.num_bytes // 2])

    async def scenario() -> None:
        async with (
            machine(half) as (address, _),
            machine(WeightStore(tmp_path / "whole"), {"tiny": folder}) as (
                other,
                second,
            ),
        ):
            with pytest.raises(UnavailableError, match=f"{address}: .*nobody brings more"):
                await fetch_from([address], "tiny", target, ignore, patience_seconds=0)
            assert contents(await fetch_from([address, other], "tiny", target, ignore)) == FETCHED
            assert 0 < second.num_bytes < _WANTED_BYTES

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked for but the manifest."""
    folder = folder_with(tmp_path / "tiny")
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: namedtuple("usage", "free")(1 << 30))

    async def scenario() -> None:
        async with machine(WeightStore(tmp_path / "source"), {"tiny": folder}) as (address, counting):
            with pytest.raises(ConfigurationError, match=r"0\.00105 GB are missing.*BATON_WEIGHTS_DIR"):
                await fetch_from([address], "tiny", WeightStore(tmp_path / "target"), ignore)
            assert counting.num_bytes == 0

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


def test_what_no_machine_gives_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's name has two ways; any other name has one, and what each machine said is told."""

    async def scenario() -> None:
        async with machine(WeightStore(tmp_path / "empty")) as (address, _):
            bring = partial(bring_model, sources=[address], on_progress=ignore, patience_seconds=0)
            assert contents(await bring("org/tiny")) == FETCHED
            with pytest.raises(ConfigurationError, match=f"{address}: model 'mine' is not here"):
                await bring("mine")

    with serving(FakeHub(FILES)) as hub:
        point_at(hub.url, tmp_path, monkeypatch)
        asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


@pytest.mark.parametrize("name", ["../x.json", "x.py", ".x.json", "a/b.json", "x.safetensors.bin"])
def test_a_machine_that_names_other_files_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing that another machine says can leave a model's folder, or be code."""

    class Naming(WeightServicer):
        async def GetManifest(  # noqa: N802 - the name is the proto's
            self, request: object, context: object
        ) -> messages.GetManifestResponse:
            file = messages.WeightFile(name=name, byte_count=1, sha256="0" * 64)
            return messages.GetManifestResponse(model="tiny", revision="0" * 40, files=[file])

    async def scenario() -> None:
        server = GrpcServer("127.0.0.1:0")
        server.add(SERVICE_NAME, Naming({}, Pace(), WeightStore(tmp_path / "source")).register)
        await server.start()
        with pytest.raises(Exception, match=r"files\.name: .* is no file of a model"):
            await fetch_from([f"127.0.0.1:{server.port}"], "tiny", WeightStore(tmp_path / "target"), ignore)
        await server.drain(0)

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


def test_a_source_that_drips_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then would have a fetch last for years; another source is asked for the rest."""
    monkeypatch.setattr("baton.weight_transfer.fetcher._SILENT_SECONDS", 0.3)

    class Dripping(Counting):
        async def FetchFile(  # noqa: N802 - the name is the proto's
            self, request: messages.FetchFileRequest, context: object
        ) -> AsyncIterator[object]:
            async for piece in super().FetchFile(request, context):
                for byte in piece.content:
                    await asyncio.sleep(0.05)
                    content = bytes([byte])
                    yield messages.FetchFileResponse(content=content, content_crc32c=crc32c(content))

    async def scenario() -> None:
        folder, dripping = folder_with(tmp_path / "tiny"), GrpcServer("127.0.0.1:0")
        served = Dripping({"tiny": folder}, Pace(), WeightStore(tmp_path / "first"))
        dripping.add(SERVICE_NAME, served.register)
        await dripping.start()
        async with machine(WeightStore(tmp_path / "second"), {"tiny": folder}) as (address, _):
            sources = [f"127.0.0.1:{dripping.port}", address]
            found = await fetch_from(sources, "tiny", WeightStore(tmp_path / "target"), ignore)
            assert contents(found) == FETCHED
        await dripping.drain(0)

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


@pytest.mark.parametrize(("name", "revision"), [("org/other", COMMIT), ("tiny", "f" * 40)])
def test_a_machine_that_gives_another_model_is_refused(name: str, revision: str, tmp_path: Path) -> None:
    """It would take the place of that in the store, from where it is served from then on."""

    class Naming(WeightServicer):
        async def GetManifest(  # noqa: N802 - the name is the proto's
            self, request: object, context: object
        ) -> messages.GetManifestResponse:
            file = messages.WeightFile(name="model.safetensors", byte_count=1, sha256="0" * 64)
            return messages.GetManifestResponse(model=name, revision=revision, files=[file])

    async def scenario() -> None:
        server, target = GrpcServer("127.0.0.1:0"), WeightStore(tmp_path / "target")
        server.add(SERVICE_NAME, Naming({}, Pace(), WeightStore(tmp_path / "source")).register)
        await server.start()
        with pytest.raises(UnavailableError, match=f"it gives {name}@{revision} for it"):
            await fetch_from([f"127.0.0.1:{server.port}"], f"tiny@{COMMIT}", target, ignore, patience_seconds=0.0)
        assert target.manifests() == []
        await server.drain(0)

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))


async def _read(address: str, **fields: object) -> None:
    from baton.internal.v1.weight_service_pb2_grpc import WeightServiceStub

    async with grpc.aio.insecure_channel(address) as channel:
        async for _ in WeightServiceStub(channel).FetchFile(messages.FetchFileRequest(**fields)):
            pass


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sha256": "../../etc/passwd"}, "sha256: expected 64"),
        ({"sha256": "0" * 64, "begin": 2, "end": 1}, "begin: expected 0 to `end`"),
        ({"sha256": "0" * 64, "begin": -1}, "begin: expected 0 to `end`"),
        ({"sha256": "0" * 64, "end": 1}, "no file 0+ is here"),
    ],
)
def test_bad_questions_are_refused_by_field(fields: Mapping[str, object], problem: str, tmp_path: Path) -> None:
    """A digest is no path."""

    async def scenario() -> None:
        async with machine(WeightStore(tmp_path)) as (address, _):
            with pytest.raises(grpc.aio.AioRpcError, match=problem):
                await _read(address, **fields)

    asyncio.run(asyncio.wait_for(scenario(), _TIMEOUT_SECONDS))
