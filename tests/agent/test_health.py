"""What the agent does about a worker's health."""

from __future__ import annotations

from agent.programs import TIMEOUT_SECONDS, Lines, run
from baton.agent.child import ChildSpec
from baton.agent.health import HealthWatch, is_serving
from baton.agent.supervisor import SupervisedState, Supervisor
from baton.rpc.server import GrpcServer


class FakeSupervisor(Supervisor):
    """A supervisor whose child is made up."""

    def __init__(self) -> None:
        super().__init__(ChildSpec("a", ()), Lines())
        self.fake_process_id = 7
        self.reasons: list[str] = []

    @property
    def process_id(self) -> int:
        """Return the made-up id."""
        return self.fake_process_id

    def restart_child(self, reason: str) -> None:
        """Note the reason."""
        self.reasons.append(reason)


class Answers:
    """A health check with given answers."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)

    async def __call__(self) -> bool:
        """Return the next answer."""
        return self._answers.pop(0)


def _watch(supervisor: Supervisor, *answers: bool, now_seconds: float = 0.0) -> HealthWatch:
    return HealthWatch(
        supervisor,
        Answers(*answers),
        interval_seconds=1.0,
        num_failed_checks=2,
        start_timeout_seconds=100.0,
        clock=lambda: now_seconds,
    )


def test_a_worker_that_answers_serves() -> None:
    """The first healthy answer ends the start."""

    async def main() -> None:
        supervisor = FakeSupervisor()

        await _watch(supervisor, True).look()

        assert supervisor.state is SupervisedState.SERVING

    run(main)


def test_a_worker_that_served_is_restarted_after_failures_in_a_row() -> None:
    """One missed answer is forgiven; a healthy one clears the count."""

    async def main() -> None:
        supervisor = FakeSupervisor()
        watch = _watch(supervisor, True, False, True, False, False)
        for _ in range(4):
            await watch.look()
        assert supervisor.reasons == []

        await watch.look()

        assert supervisor.reasons == ["unhealthy_checks=2"]

    run(main)


def test_a_worker_that_starts_slowly_gets_its_time() -> None:
    """Loading a model is not a failure, unless it takes longer than allowed."""

    async def main() -> None:
        supervisor = FakeSupervisor()

        await _watch(supervisor, False, now_seconds=99.0).look()
        assert supervisor.reasons == []
        await _watch(supervisor, False, now_seconds=101.0).look()

        assert supervisor.reasons == ["not_healthy_within_seconds=100"]

    run(main)


def test_a_worker_whose_machine_woke_is_forgiven() -> None:
    """What failed before counts no more, and a start gets its whole time again."""

    async def main() -> None:
        supervisor = FakeSupervisor()
        now_seconds = 0.0
        watch = HealthWatch(
            supervisor,
            Answers(True, False, False, False, False, False),
            interval_seconds=1.0,
            num_failed_checks=2,
            start_timeout_seconds=100.0,
            clock=lambda: now_seconds,
        )
        for _ in range(2):
            await watch.look()

        watch.forgive()

        await watch.look()
        assert supervisor.reasons == []
        supervisor.state = SupervisedState.STARTING
        now_seconds = 3000.0
        watch.forgive()
        await watch.look()
        assert supervisor.reasons == []
        now_seconds = 3101.0
        await watch.look()
        assert supervisor.reasons == ["not_healthy_within_seconds=100"]

    run(main)


def test_nobody_is_asked_while_no_worker_runs() -> None:
    """Between two runs there is nothing to check."""

    async def main() -> None:
        supervisor = FakeSupervisor()
        supervisor.fake_process_id = 0

        await _watch(supervisor).look()

        assert supervisor.reasons == []

    run(main)


def test_health_is_asked_over_grpc() -> None:
    """A serving server says yes; one that does not serve, or is not there, says no."""

    async def main() -> None:
        server = GrpcServer("127.0.0.1:0")
        port = await server.start(is_serving=False)
        assert not await is_serving(f"127.0.0.1:{port}", TIMEOUT_SECONDS / 2)

        server.set_serving(True)

        assert await is_serving(f"127.0.0.1:{port}", TIMEOUT_SECONDS / 2)
        await server.drain(0)
        assert not await is_serving(f"127.0.0.1:{port}", TIMEOUT_SECONDS / 2)

    run(main)
