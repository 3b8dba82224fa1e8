"""Machines for a test: network namespaces on one switch, each behind a link of a given rate. Linux, root, iproute2."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = "10.79.0.254"
"""Address of this host on the machines' switch, behind no shaped link."""
_SWITCH = "baton-switch"
_READY_SECONDS = 240.0


class JoiningMachine:
    """A namespace with an address of its own; its processes end with it.

    Args:
        number: From 1 on.
        folder: For its files and logs.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.namespace = f"baton-m{number}"
        self.address = f"10.79.0.{number}"
        self.state_dir = folder / self.namespace
        self._log = folder / f"{self.namespace}.log"
        self._running: list[subprocess.Popen[bytes]] = []
        self._environment = {
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "110",
            "BATON_WEIGHTS_DIR": str(self.state_dir / "weights"),
            "BATON_UP_STATE_DIR": str(self.state_dir / "up"),
        }

    def connect(self, bits_per_second: float) -> None:
        """Make it, and its link to the switch."""
        device = f"{self.namespace}-0"
        for line in (
            f"ip netns add {self.namespace}",
            f"ip link add {device} type veth peer name eth0 netns {self.namespace}",
            f"ip link set {device} master {_SWITCH} up",
            f"ip -n {self.namespace} addr add {self.address}/24 dev eth0",
            f"ip -n {self.namespace} link set eth0 up",
            f"ip -n {self.namespace} link set lo up",
            f"ip -n {self.namespace} route add 224.0.0.0/4 dev eth0",
        ):
            _run(line)
        self.shape(bits_per_second)

    def shape(self, bits_per_second: float) -> None:
        """Shape what it sends."""
        burst = max(16_000, int(bits_per_second / 8 / 250 * 1.5))
        shape = f"tbf rate {int(bits_per_second)}bit burst {burst} latency 20ms"
        _run(f"ip netns exec {self.namespace} tc qdisc replace dev eth0 root {shape}")

    def start(self, *arguments: str) -> None:
        """Run `baton` with arguments on it, beside what runs; its output goes to the log."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command(arguments), stdout=log, stderr=log, env=os.environ | self._environment
            )
        self._running.append(process)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `baton` with arguments on it, to its end."""
        command, environment = self._command(arguments), os.environ | self._environment
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)

    def ask(self, prompt: str, **fields: object) -> dict[str, Any]:
        """Return the answer of the gateway on its loopback; raise CalledProcessError without one."""
        message = {"role": "user", "content": prompt}
        body = {"model": "baton-demo", "temperature": 0, "max_tokens": 24, "messages": [message], **fields}
        url = "http://127.0.0.1:8000/v1/chat/completions"
        call = ("ip", "netns", "exec", self.namespace, "curl", "-sS", "-m", "120", url, "--json", json.dumps(body))
        told = subprocess.run(call, capture_output=True, text=True, timeout=150, check=True).stdout
        answer: dict[str, Any] = json.loads(told)
        return answer

    def ask_in_the_end(self, prompt: str) -> dict[str, Any]:
        """Return the gateway's answer, asking again where the machine is off or it refuses; raise TimeoutError."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            with suppress(subprocess.CalledProcessError):
                if "choices" in (answer := self.ask(prompt)):
                    return answer
            time.sleep(0.2)  # a client that has no patience
        raise TimeoutError(f"no answer to {prompt!r}\n{self.log[-4000:]}")

    def printed(self, pattern: str) -> str:
        """Return what a pattern's group is in the log, once it is there.

        Raises:
            TimeoutError: If it does not come; the message has the end of the log.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while not (found := re.findall(pattern, self.log)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern} in\n{self.log[-4000:]}")
            time.sleep(0.1)  # another process writes it
        return str(found[-1])

    @property
    def log(self) -> str:
        """Return all that its processes have written."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def send(self, number: signal.Signals, program: str = "") -> None:
        """Send a signal to its processes, or to those alone whose command line has these words."""
        told = subprocess.run(("ip", "netns", "pids", self.namespace), capture_output=True, text=True, check=False)
        for process_id in told.stdout.split():
            with suppress(OSError):  # it has ended meanwhile
                if program in Path(f"/proc/{process_id}/cmdline").read_text().replace("\0", " "):
                    os.kill(int(process_id), number)

    def fail(self) -> None:
        """End all its processes at once, as when it loses power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask its processes to end, and wait."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM:
            for process in self._running:
                process.send_signal(number)
        else:
            self.send(number)
        for process in self._running:
            process.wait(60)
        self._running.clear()

    def _command(self, arguments: Sequence[str]) -> Sequence[str]:
        return ("ip", "netns", "exec", self.namespace, sys.executable, "-m", "baton.cli", *arguments)


@contextmanager
def machines(count: int, folder: Path, bits_per_second: float) -> Iterator[Sequence[JoiningMachine]]:
    """Make machines on one network; all of it goes with the context."""
    made = [JoiningMachine(number, folder) for number in range(1, count + 1)]
    _remove(made)
    try:
        _run(f"ip link add {_SWITCH} type bridge mcast_snooping 0")
        _run(f"ip addr add {HERE}/24 dev {_SWITCH}")
        _run(f"ip link set {_SWITCH} up")
        for machine in made:
            machine.connect(bits_per_second)
        yield made
    finally:
        for machine in made:
            machine.fail()
        _remove(made)


def _remove(made: Sequence[JoiningMachine]) -> None:
    for machine in made:
        subprocess.run(("ip", "link", "del", f"{machine.namespace}-0"), capture_output=True, check=False)
        subprocess.run(("ip", "netns", "del", machine.namespace), capture_output=True, check=False)
    subprocess.run(("ip", "link", "del", _SWITCH), capture_output=True, check=False)


def _run(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True, text=True)
