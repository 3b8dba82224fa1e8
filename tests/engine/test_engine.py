"""The engine in its own thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from baton.capacity.hardware import PRESETS
from baton.capacity.snapshot import QueuedPrompt
from baton.engine.engine import Engine
from baton.engine.events import Admitted, Ended, EngineEvent, EngineLoad, Failed, LandingLoad, TokenReady
from baton.engine.request import KvExportSpec, Purpose, SamplingParams, StructuredOutput
from baton.engine.runners.base import Span
from baton.engine.scheduling.admission import SchedulerLimits
from baton.errors import (
    AttemptReusedError,
    BatonError,
    InvalidFieldError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    OverloadedError,
)
from baton.node.cluster.registration import load_message
from baton.router.proto import load_from_proto
from engine.faulty_runners import FaultyRunner, SpoilingRunner, still
from engine.rig import (
    EOS,
    GREEDY,
    INFO,
    TIMEOUT_SECONDS,
    VOCABULARY_SIZE,
    Rig,
    WaitingMockRunner,
    expected_tokens,
    mock_runner,
    prompt_of,
    request_of,
)

ENDLESS = replace(GREEDY, max_tokens=200)


class GatedRunner(WaitingMockRunner):
    """Computes nothing until its gate is opened: what is asked meanwhile waits for the end of the pass."""

    def __init__(self) -> None:
        super().__init__(
            INFO, PRESETS["h200"], num_blocks=64, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
        )
        self.gate, self.is_computing = threading.Event(), threading.Event()

    def forward(self, spans: Sequence[Span]) -> Any:
        """Compute once the gate is open."""
        self.is_computing.set()
        assert self.gate.wait(TIMEOUT_SECONDS)
        return super().forward(spans)


def test_a_request_is_admitted_answered_and_ended() -> None:
    """In this order, with consecutive indices; then nothing of it is left."""
    with Rig() as rig:
        listening = rig.submit(request_of(prompt_of(10)))
        assert listening.result() == expected_tokens(prompt_of(10), 8)

    kinds = [type(event) for event in listening.seen]
    assert kinds == [Admitted] + [TokenReady] * 8 + [Ended]
    ended = listening.seen[-1]
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.num_prompt_tokens, ended.num_output_tokens) == ("length", 10, 8)
    assert ended.stop_token_id is None


def test_the_end_tells_with_how_many_a_request_decoded() -> None:
    """The second one is computed beside the first one's step, and has a last step alone."""
    runner, ended = GatedRunner(), list[EngineEvent]()
    with Rig(runner) as rig:
        first = rig.submit(request_of(prompt_of(10), "first"))
        assert runner.is_computing.wait(TIMEOUT_SECONDS)
        second = rig.submit(request_of(prompt_of(9, seed=1), "second"))
        runner.gate.set()
        for listening in (first, second):
            listening.result()
            ended.append(listening.seen[-1])

    assert [each.mean_batch_size for each in ended if isinstance(each, Ended)] == [14 / 7, 13 / 7]


def test_many_requests_say_the_same_as_alone() -> None:
    """More than fit at once, with shared prefixes and a pool that forces preemptions."""
    prompts = [prompt_of(3 + 2 * index, seed=index % 3) for index in range(20)]
    with Rig(mock_runner(num_blocks=24), max_batch_size=6) as rig:
        listenings = [rig.submit(request_of(prompt, f"r{index}")) for index, prompt in enumerate(prompts)]
        answers = [listening.result() for listening in listenings]

    assert answers == [expected_tokens(prompt, 8) for prompt in prompts]


def test_preemption_changes_nothing_but_its_count() -> None:
    """The same two requests in a pool with and without room for both."""
    params = replace(GREEDY, max_tokens=30)
    answers = []
    for num_blocks in (64, 12):
        with Rig(mock_runner(num_blocks)) as rig:
            listenings = rig.submit_together([request_of(prompt_of(9, seed), f"r{seed}", params) for seed in (1, 2)])
            answers.append([listening.result() for listening in listenings])
            preemptions = sum(listening.seen[-1].num_preemptions for listening in listenings)  # type: ignore[union-attr]
            assert (preemptions > 0) is (num_blocks == 12)

    assert answers[0] == answers[1]


def test_a_repeated_prompt_is_not_computed_again() -> None:
    """Nor one that continues a dialogue: output is cached as well."""
    with Rig() as rig:
        first = rig.generate(request_of(prompt_of(12)))
        again = rig.submit(request_of(prompt_of(12)))
        assert again.result() == first
        longer = rig.submit(request_of([*prompt_of(12), *first]))
        longer.result()

    assert [listening.seen[0] for listening in (again, longer)] == [Admitted(8), Admitted(16)]


def test_an_aborted_request_is_silent_and_frees_its_blocks() -> None:
    """The engine goes on with the others."""
    with Rig() as rig:
        request = request_of(prompt_of(10), "aborted", ENDLESS)
        listening = rig.submit(request)
        listening.until(TokenReady)
        rig.engine.abort(request)
        rig.settle()
        num_events = listening.events.qsize()
        other = rig.generate(request_of(prompt_of(10), "other"))

        assert other == expected_tokens(prompt_of(10), 8)
        assert listening.events.qsize() == num_events


def test_a_count_of_cached_blocks_that_nobody_waits_for_ends_nothing() -> None:
    """Whoever asked has gone before the engine came to it; others are answered."""
    with Rig() as rig:
        gate = threading.Event()
        rig.engine.call(gate.wait)  # type: ignore[arg-type]
        abandoned = rig.engine.count_cached([])
        assert abandoned.cancel()
        gate.set()

        assert rig.engine.count_cached([]).result(TIMEOUT_SECONDS) == 0


def test_aborting_what_never_was_or_has_ended_does_nothing() -> None:
    """Services abort in every case."""
    with Rig() as rig:
        rig.engine.abort(request_of(prompt_of(3), "never"))
        request = request_of(prompt_of(3))
        rig.generate(request)
        rig.engine.abort(request)


def test_a_second_request_of_one_id_is_refused_and_harms_not_the_first() -> None:
    """Although the service that was refused aborts its own afterwards."""
    runner = GatedRunner()
    with Rig(runner) as rig:
        first = rig.submit(request_of(prompt_of(10), params=ENDLESS))
        second_request = request_of(prompt_of(5))
        second = rig.submit(second_request)
        runner.gate.set()
        refusal = second.until(Failed)
        rig.engine.abort(second_request)

        assert isinstance(refusal, Failed)
        assert isinstance(refusal.error, AttemptReusedError)
        assert first.result() == expected_tokens(prompt_of(10), 200)


def test_an_id_may_be_used_again_after_its_end() -> None:
    """And a late abort of the request that had it before does not reach the next one."""
    with Rig() as rig:
        earlier = request_of(prompt_of(10))
        rig.generate(earlier)
        listening = rig.submit(request_of(prompt_of(11), params=ENDLESS))
        rig.engine.abort(earlier)

        assert listening.result() == expected_tokens(prompt_of(11), 200)


REFUSALS: list[tuple[type[BatonError], Any]] = [
    (InvalidFieldError, request_of(())),
    (InvalidFieldError, request_of([VOCABULARY_SIZE])),
    (InvalidFieldError, request_of([-1])),
    (InvalidFieldError, request_of([1], output_token_ids=(VOCABULARY_SIZE,))),
    (InvalidFieldError, request_of(prompt_of(INFO.max_context_tokens))),
    (InvalidFieldError, request_of([1], params=SamplingParams(temperature=-1.0))),
    (InvalidFieldError, request_of([1], params=SamplingParams(max_tokens=0))),
    (InvalidFieldError, request_of([1], params=SamplingParams(stop_token_ids=frozenset({VOCABULARY_SIZE})))),
    (OutOfMemoryError, request_of(prompt_of(200))),
]


@pytest.mark.parametrize(("error", "request_"), REFUSALS)
def test_a_request_that_cannot_be_served_is_refused_beside_one_that_can(error: type[BatonError], request_: Any) -> None:
    """By the class of the error; the other one does not notice."""
    with Rig(mock_runner(num_blocks=32)) as rig:
        other = rig.submit(request_of(prompt_of(10), "other", replace(GREEDY, max_tokens=40)))
        refused = rig.submit(request_)
        failed = refused.next()

        assert isinstance(failed, Failed)
        assert type(failed.error) is error
        assert other.result() == expected_tokens(prompt_of(10), 40)


def test_a_full_queue_refuses() -> None:
    """With the error that says: later."""
    runner = GatedRunner()
    with Rig(runner, max_batch_size=1, max_waiting=1) as rig:
        rig.submit(first := request_of(prompt_of(4), "first", ENDLESS)).until(Admitted)
        rig.submit(waiting := request_of(prompt_of(4), "waiting", ENDLESS))
        third = rig.submit(request_of(prompt_of(4), "third"))
        runner.gate.set()
        failed = third.next()
        rig.engine.abort(first)
        rig.engine.abort(waiting)

        assert isinstance(failed, Failed)
        assert isinstance(failed.error, OverloadedError)


def test_a_pass_that_raises_fails_its_own_requests_only() -> None:
    """Those that waited are computed afterwards; the blocks of the failed ones are free."""
    runner = FaultyRunner(
        INFO, mock_runner().hardware, num_blocks=64, block_tokens=4, clock=lambda: 1.0, sleep=lambda _: None
    )
    with Rig(runner, max_batch_size=1) as rig:
        bad = rig.submit(request_of([5, 1, 6], "bad"))
        good = rig.submit(request_of([5, 6, 2], "good", replace(GREEDY, max_tokens=2)))
        failed = bad.until(Failed, Ended)

        assert isinstance(failed, Failed)
        assert "device lost" in failed.error.message
        assert good.result() == expected_tokens([5, 6, 2], 2)


def test_a_stop_token_ends_and_is_delivered() -> None:
    """As the last token, with reason stop."""
    tokens = expected_tokens(prompt_of(6), 8)
    stop = tokens[3]
    with Rig() as rig:
        listening = rig.submit(request_of(prompt_of(6), params=replace(GREEDY, stop_token_ids=frozenset({stop}))))
        answer = listening.result()

    ended = listening.seen[-1]
    assert answer == tokens[: tokens.index(stop) + 1]
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.stop_token_id) == ("stop", stop)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_models_end_token_ends_unless_it_is_ignored(ignore_eos: bool) -> None:
    """Forced by a bias, since the mock never says it by itself."""
    params = replace(
        GREEDY, temperature=1.0, logit_bias={EOS: 100.0}, min_tokens=2, max_tokens=5, ignore_eos=ignore_eos
    )
    with Rig() as rig:
        answer = rig.generate(request_of(prompt_of(6), params=params))

    assert len(answer) == (5 if ignore_eos else 3)
    assert answer[-1] == EOS


def test_a_resumed_generation_continues_where_the_first_attempt_stopped() -> None:
    """Same tokens, indices counted on, limit counted over both."""
    whole = expected_tokens(prompt_of(10), 8)
    with Rig() as rig:
        listening = rig.submit(request_of(prompt_of(10), output_token_ids=tuple(whole[:3])))

        assert listening.result() == whole[3:]
        assert [event.output_index for event in listening.seen if isinstance(event, TokenReady)] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("output", "reason"), [((9, 9, 9, 9, 9, 9, 9, 9), "length"), ((9, EOS), "stop"), ((9,) * 9, "length")]
)
def test_an_output_that_is_complete_gets_no_further_token(output: tuple[int, ...], reason: str) -> None:
    """The earlier attempt had delivered its last token and died before it could say so."""
    with Rig() as rig:
        listening = rig.submit(request_of(prompt_of(10), output_token_ids=output))
        ended = listening.next()

    assert isinstance(ended, Ended)
    assert (ended.reason, ended.num_output_tokens) == (reason, len(output))
    assert ended.stop_token_id == (EOS if reason == "stop" else None)


def test_a_resumed_request_counts_its_prompt_alone_as_cached() -> None:
    """Earlier output may be in the cache too; of it nobody asked."""
    with Rig() as rig:
        output = rig.generate(request_of(prompt_of(10)))
        listening = rig.submit(request_of(prompt_of(10), output_token_ids=tuple(output[:7])))
        ended = listening.until(Ended)

    assert listening.seen[0] == Admitted(16)
    assert isinstance(ended, Ended)
    assert ended.prompt_work.num_cached_tokens == 10


def test_generation_ends_with_the_context() -> None:
    """Prompt and output together, where no limit was given."""
    info = replace(INFO, max_context_tokens=20)
    with Rig(mock_runner(info=info)) as rig:
        listening = rig.submit(request_of(prompt_of(15), params=replace(GREEDY, max_tokens=None)))

        assert listening.result() == expected_tokens(prompt_of(15), 5)


def test_the_load_is_right_when_the_engine_rests() -> None:
    """Whatever it was while it ran."""
    with Rig() as rig:
        rig.generate(request_of(prompt_of(10)))
        rig.settle()
        rig.settle()
        load = rig.engine.load()

    assert (load.num_waiting, load.num_running, load.num_pending_prompt_tokens) == (0, 0, 0)
    assert load.num_available_blocks == 64
    assert load.num_steps == 8


def test_the_load_names_the_prompts_that_are_to_be_computed() -> None:
    """In order of turns, with how far each is; and their placements are told once the load counts them."""
    runner = GatedRunner()
    with Rig(runner, max_batch_size=1) as rig:
        first = request_of(prompt_of(40), "first", ENDLESS, placement_id="p-1")
        second = request_of(prompt_of(20, seed=2), "second", ENDLESS, placement_id="p-2")
        listening, _ = rig.submit_together([first, second])
        listening.until(Admitted)
        load, accepted = rig.engine.load(), list(rig.accepted_placement_ids)
        runner.gate.set()
        for request in (first, second):
            rig.engine.abort(request)

    assert accepted == ["p-1", "p-2"]
    assert load.queued_prompts == (QueuedPrompt("p-1", 0, 40), QueuedPrompt("p-2", 0, 20))


def test_the_load_tells_how_old_it_is() -> None:
    """For the whole of a pass it stays what it was before, whenever a node reports it."""
    runner, seconds = GatedRunner(), [1.0]
    with Rig(runner, clock=lambda: seconds[0]) as rig:
        request = request_of(prompt_of(40), params=ENDLESS, placement_id="p-1")
        rig.submit(request)
        assert runner.is_computing.wait(TIMEOUT_SECONDS)
        seconds[0] += 2.5
        load, age_seconds = rig.engine.load(), rig.engine.load_age_seconds()
        runner.gate.set()
        rig.engine.abort(request)
    message = load_message(load, is_draining=False, accepted_placement_ids=[], system=None, age_seconds=age_seconds)
    wanting = load_message(
        replace(load, num_available_blocks=3, num_wanted_blocks=10),
        is_draining=False,
        accepted_placement_ids=[],
        system=None,
    )

    assert load_from_proto(wanting).load.num_free_blocks == 3 - 10
    assert load.queued_prompts == (QueuedPrompt("p-1", 0, 40),)
    assert load_from_proto(message).age_seconds == 2.5


def test_the_load_tells_who_decodes_from_whose_prompt_is_computed_for_others() -> None:
    """On a node that does both: a prompt stalls the first and never meets the second in the batch."""
    runner = GatedRunner()
    with Rig(runner) as rig:
        generating = request_of(prompt_of(8), "generating", ENDLESS, placement_id="p-1")
        export = request_of(prompt_of(12, seed=2), "export", purpose=Purpose.PREFILL)
        listening, exporting = rig.submit_together([generating, export])
        exporting.until(Admitted)
        computing = rig.engine.load()
        runner.gate.set()
        listening.until(TokenReady)
        exporting.until(Ended)
        decoding = rig.do(lambda: rig.engine._registry.load(0, LandingLoad()))
        rig.engine.abort(generating)

    assert (computing.num_running, computing.num_decoding, computing.num_exports) == (2, 0, 1)
    assert computing.mean_context_tokens == 8
    assert (decoding.num_running, decoding.num_decoding, decoding.num_exports) == (1, 1, 0)


def test_a_request_that_is_given_up_is_told_as_soon_as_it_is_gone() -> None:
    """Nobody reports an outcome of it: routers would count it until the next regular report, half a second later."""
    told = queue.SimpleQueue[int]()
    with Rig(clock=map(float, count(1)).__next__) as rig:  # every pass is long enough for a look at the load
        rig.engine._on_queue_change = lambda _placement_ids: told.put(rig.engine.load().num_running)
        request = request_of(prompt_of(8), params=ENDLESS, placement_id="p")

        def give_up(event: EngineEvent) -> None:
            if isinstance(event, TokenReady) and event.output_index == 2:
                rig.engine.abort(request)

        rig.engine.submit(request, give_up)
        assert told.get(timeout=TIMEOUT_SECONDS) == 1
        while told.get(timeout=TIMEOUT_SECONDS):
            pass


class SlowReader(WaitingMockRunner):
    """Takes an eighth of a second to read a layer, and half of one for a pass, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 1.0
        hardware = PRESETS["h200"]
        super().__init__(
            INFO, hardware, num_blocks=64, block_tokens=4, fixed_step_seconds=0.5, clock=self.tell, sleep=self.pass_by
        )

    def tell(self) -> float:
        """Return the time."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def move_seconds(self, num_bytes: int) -> float:
        """Return the same for any layer."""
        return 0.125


def test_reading_cached_kv_for_another_node_is_no_computation() -> None:
    """A prompt waits for it as for a pass of others; and the node tells how fast it reads."""
    runner = SlowReader()
    with Rig(runner, clock=runner.tell) as rig:
        rig.generate(request_of(prompt_of(13), "first"))
        export = KvExportSpec(lambda start, layer, kv: None)
        listening = rig.submit(request_of(prompt_of(13), "second", purpose=Purpose.PREFILL, export=export))
        ended = listening.until(Ended)
        load = rig.do(lambda: rig.engine._take_load() or rig.engine.load())

    reading_seconds = 0.125 * INFO.layout.num_layers
    assert isinstance(ended, Ended)
    assert isinstance(load, EngineLoad)
    assert ended.prompt_work.num_cached_tokens == 12
    assert (ended.prompt_work.queue_seconds, ended.prompt_work.prefill_seconds) == (reading_seconds, 0.5)
    assert load.reading_bytes_per_second == 12 * INFO.layout.num_token_bytes() / reading_seconds


def test_a_request_that_receives_is_no_work_for_this_engine() -> None:
    """It needs no step: a router that expected one would take the node for stuck."""
    with Rig() as rig:
        request = request_of(prompt_of(10), purpose=Purpose.RECEIVE)
        rig.submit(request).until(Admitted)
        for _ in range(2):
            rig.do(lambda: None)
        load = rig.engine.load()
        rig.engine.abort(request)

    assert (load.num_waiting, load.num_running, load.num_pending_prompt_tokens) == (1, 0, 0)


def test_the_runner_is_freed_when_the_engine_closes() -> None:
    """Also while a request runs."""
    closed = []
    rig = Rig()
    rig.runner.close = lambda: closed.append(True)  # type: ignore[method-assign]
    rig.engine.start()
    rig.submit(request_of(prompt_of(10), params=ENDLESS)).until(TokenReady)

    rig.engine.close()

    assert closed == [True]


def test_a_bug_in_the_thread_is_reported() -> None:
    """A deaf engine would be worse than a dead process."""
    rig = Rig()
    rig.engine.start()

    def break_down() -> None:
        raise RuntimeError("bug")

    rig.engine.call(break_down)
    rig.engine.close()

    assert [str(error) for error in rig.fatal] == ["bug"]


def test_a_block_that_a_command_loses_is_noticed_at_rest() -> None:
    """Also where no pass was computed: requests that only receive take blocks and give them back by commands."""
    fatal: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    limits = SchedulerLimits(max_batch_size=8, max_step_tokens=16)
    engine = Engine(mock_runner(), limits, post=lambda _deliveries: None, on_fatal=fatal.put, clock=lambda: 1.0)
    engine.start()

    engine.call(lambda: engine.scheduler.pool.allocate(1))

    assert "0 owners" in str(fatal.get(timeout=TIMEOUT_SECONDS))
    engine.close()


def test_a_request_without_a_limit_ends_where_the_memory_does() -> None:
    """A pool smaller than the context bounds the output, rather than refusing the request."""
    with Rig(mock_runner(num_blocks=4, block_tokens=4)) as rig:
        tokens = rig.generate(request_of(prompt_of(5), params=SamplingParams(temperature=0.0, ignore_eos=True)))

        assert tokens == expected_tokens(prompt_of(5), 4 * 4 - 5)


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    """With a reason of its own; the neighbour in the batch says what it says alone."""
    with Rig(still(SpoilingRunner)) as rig:
        sound = rig.submit(request_of(prompt_of(10), "sound"))
        spoiled = rig.submit(request_of([5, 1, 9], "spoiled"))

        failed = spoiled.until(Failed)
        assert isinstance(failed, Failed)
        assert (type(failed.error), failed.error.reason) == (NonFiniteLogitsError, "NON_FINITE_LOGITS")
        assert spoiled.token_ids == []
        assert sound.result() == expected_tokens(prompt_of(10), 8)


def test_blocks_behind_spoiled_logits_leave_the_prefix_cache() -> None:
    """They may be what spoiled them: nobody may hit them again, chunks of earlier passes included."""
    with Rig(still(SpoilingRunner), max_step_tokens=8) as rig:
        rig.submit(request_of([*prompt_of(30), 9], "spoiled")).until(Failed)

        rig.settle()
        assert not any(rig.hashes.values())


def test_a_form_that_nobody_compiled_is_refused() -> None:
    """Rather than generated without it."""
    with Rig() as rig:
        params = replace(GREEDY, structured_output=StructuredOutput("regex", "a"))

        failed = rig.submit(request_of(prompt_of(5), params=params)).next()

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, InvalidFieldError)
    assert failed.error.field == "structured_output"
