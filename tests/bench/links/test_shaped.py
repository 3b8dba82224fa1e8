"""Numbers and picture of the hand-over across shaped links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest

from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateResponse
from baton.internal.v1.router_service_pb2 import Placement
from baton.v1.generation_pb2 import PlacementSummary
from bench.links import shaped
from bench.links.shaped import NotRemoteError, Row, Sample, generate_remotely

_SAMPLE = Sample(
    compute_seconds=2.0,
    transfer_seconds=1.0,
    exposed_seconds=0.1,
    last_token_seconds=2.2,
    predicted_seconds=2.2,
    num_bytes=125_000_000,
    num_frames=10,
)


@pytest.mark.parametrize(
    ("link_bits_per_second", "wire_seconds", "bound_seconds"), [(1e9, 1.0456, 2.1046), (0.25e9, 4.1823, 4.3823)]
)
def test_the_bound_is_the_slower_stage_and_one_group_of_the_quicker(
    link_bits_per_second: float, wire_seconds: float, bound_seconds: float
) -> None:
    """Where the link is quicker, the last group's way remains; where it is slower, the first group's computation."""
    row = Row("a to b", link_bits_per_second, 100, (_SAMPLE,))

    assert row.wire_seconds == pytest.approx(wire_seconds, rel=1e-3)
    assert row.bound_seconds == pytest.approx(bound_seconds, rel=1e-3)
    assert row.start_seconds == pytest.approx(2.1)
    assert row.hidden_share == pytest.approx(0.9)
    assert row.document()["blob_seconds"] == pytest.approx(2.0 + wire_seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("transfer_seconds", "exposed_seconds", "hidden_share"), [(0.0, 0.0, 1.0), (1.0, 0.25, 0.75), (1.0, 2.0, 0.0)]
)
def test_a_transfer_that_took_no_time_is_hidden(
    transfer_seconds: float, exposed_seconds: float, hidden_share: float
) -> None:
    """Every frame may have arrived as soon as it was made; and more than all of a transfer cannot be exposed."""
    sample = replace(_SAMPLE, transfer_seconds=transfer_seconds, exposed_seconds=exposed_seconds)

    assert Row("a to b", 1e9, 100, (sample,)).hidden_share == hidden_share


def test_a_transfer_without_frames_is_one_group() -> None:
    """The bound is the two stages one after the other then."""
    row = Row("a to b", 1e9, 100, (replace(_SAMPLE, num_frames=0),))

    assert row.bound_seconds == pytest.approx(2.0 + row.wire_seconds)


@pytest.fixture
def _is_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attempts follow each other at once."""
    monkeypatch.setattr(shaped, "_RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("_is_hurried")
def test_a_router_that_knows_no_node_for_a_while_is_asked_again() -> None:
    """A node whose report is late is there again with the next one; other errors end the run."""
    cluster = FlakyCluster(num_fallbacks=0, errors=[CallError(grpc.StatusCode.UNAVAILABLE)])

    assert generate_remotely(cluster, 512, seed=1).num_bytes == 5  # type: ignore[arg-type]
    wrong = FlakyCluster(num_fallbacks=0, errors=[CallError(grpc.StatusCode.INVALID_ARGUMENT)])
    with pytest.raises(CallError):
        generate_remotely(wrong, 512, seed=1)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_is_hurried")
def test_a_placement_whose_call_failed_is_used_by_the_next_one() -> None:
    """A second one would be placed beside a stream that nobody sends; one that has run is used up."""
    failing = FlakyCluster(num_fallbacks=0, call_errors=[CallError(grpc.StatusCode.UNAVAILABLE)])
    elsewhere = FlakyCluster(num_fallbacks=1)
    for cluster in (failing, elsewhere):
        generate_remotely(cluster, 512, seed=1)  # type: ignore[arg-type]

    assert [each.placement_id for each in failing.generated] == ["1", "1"]
    assert [each.placement_id for each in elsewhere.generated] == ["1", "2"]


@pytest.mark.usefixtures("_is_hurried")
def test_an_answer_without_tokens_is_no_sample() -> None:
    """It has no time of a last token, and is asked for again."""
    responses = [DecodeServiceGenerateResponse(finished={"summary": {"kv_byte_count": 5}})]
    decode = SimpleNamespace(Generate=lambda *_, **__: iter(responses))
    cluster = shaped.Cluster(decode, None, "near", "far")  # type: ignore[arg-type]

    with pytest.raises(NotRemoteError, match="no token came"):
        cluster.generate(Placement(prefill_node_id="far"), 10, 2, 1)


@pytest.mark.usefixtures("_is_hurried")
def test_what_was_not_computed_remotely_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A fallback says nothing of the link; three in a row end the run with their cause."""
    cluster = FlakyCluster(num_fallbacks=2)

    sample = generate_remotely(cluster, 512, seed=1)  # type: ignore[arg-type]

    assert sample.num_bytes == 5
    assert capsys.readouterr().out.count("again, 512 tokens: slow") == 2
    with pytest.raises(NotRemoteError, match="slow"):
        generate_remotely(FlakyCluster(num_fallbacks=3), 512, seed=1)  # type: ignore[arg-type]


class CallError(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code)
        self._code = code

    def code(self) -> grpc.StatusCode:
        """Return why."""
        return self._code


class FlakyCluster:
    """A cluster whose first prompts are computed where they should not be, if the router places them at all."""

    def __init__(
        self, num_fallbacks: int, errors: Sequence[CallError] = (), call_errors: Sequence[CallError] = ()
    ) -> None:
        self._num_fallbacks = num_fallbacks
        self._errors = list(errors)
        self._call_errors = list(call_errors)
        self.num_placements = 0
        self.generated: list[Placement] = []
        """What was to be generated, failed calls included."""

    def place(self, _num_prompt_tokens: int, _num_output_tokens: int) -> Placement:
        """Return a placement, after the errors."""
        if self._errors:
            raise self._errors.pop()
        self.num_placements += 1
        return Placement(placement_id=str(self.num_placements), prefill_node_id="far")

    def generate(self, placement: Placement, *_arguments: object) -> tuple[list[float], PlacementSummary]:
        """Return tokens' times and a summary, after the errors."""
        self.generated.append(placement)
        if self._call_errors:
            raise self._call_errors.pop()
        self._num_fallbacks -= 1
        if self._num_fallbacks >= 0:
            raise NotRemoteError("slow")
        return [1.0], PlacementSummary(kv_byte_count=5)
