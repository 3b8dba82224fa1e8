"""Starts the pods of an example of the chart from built images, each in its root file system, and asks them something.

What a container gets from Kubernetes it gets here: its arguments and variables as the chart renders them, its user, no
capability, a read-only root with a /tmp in memory, an address of its own on a loopback network that only they share,
and the names of Services. `helm test`'s own script then asks for a completion.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from charts.render import CHART, manifests_of, read_example, render
from images.root_file_system import Confinement, command_in
from images.stage_trial import Image

_ANSWER_SECONDS = 150.0
_NUM_ATTEMPTS = 5
_END_SECONDS = 45.0
_GATEWAY_PORT = 8000
_GOOD_ENDS = (0, 128 + signal.SIGTERM)
"""Exit statuses after SIGTERM: of a service that drained, and of a node that had not loaded its model yet."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a Deployment."""

    name: str
    """The Deployment's, which is unique."""
    labels: Mapping[str, str]
    """By which Services find it."""
    container: Manifest
    """Its only container."""
    address: str
    """On the loopback network."""

    @property
    def image(self) -> str:
        """Return which of the Dockerfile's targets it runs."""
        repository: str = self.container["image"].rpartition(":")[0]
        return repository.rpartition("/")[2].removeprefix("baton-")

    @property
    def environment(self) -> Mapping[str, str]:
        """Return its variables, with what Kubernetes puts in."""
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": "trial",
            "status.podIP": self.address,
            "spec.nodeName": "here",
        }
        return {
            each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self.container.get("env", [])
        }

    @property
    def arguments(self) -> Sequence[str]:
        """Return what it runs, listening on its own address alone: in a pod that is all of them."""
        found = []
        for argument in self.container["args"]:
            for name, value in self.environment.items():
                argument = argument.replace(f"$({name})", value)
            found.append(argument.replace("=0.0.0.0", f"={self.address}"))
        return found


def pods_of(manifests: Sequence[Manifest]) -> list[Pod]:
    """Return one pod per Deployment, however many replicas it asks for."""
    deployments = [each for each in manifests if each["kind"] == "Deployment"]
    return [
        Pod(
            each["metadata"]["name"],
            each["spec"]["template"]["metadata"]["labels"],
            each["spec"]["template"]["spec"]["containers"][0],
            f"127.0.1.{number}",
        )
        for number, each in enumerate(deployments, start=1)
    ]


def hosts_file(manifests: Sequence[Manifest], pods: Sequence[Pod]) -> str:
    """Return the names of all Services, each with the address of the pod that it selects."""
    lines = ["127.0.0.1 localhost"]
    for each in manifests:
        if each["kind"] == "Service":
            name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
            found = [pod.address for pod in pods if each["spec"]["selector"].items() <= pod.labels.items()]
            lines += [f"{address} {name} {name}.{namespace}.svc" for address in found[:1]]
    return "\n".join(lines) + "\n"


def try_pods(example: str, images: Mapping[str, Image]) -> str:
    """Return what the pods of an example answered, in a network namespace of their own.

    Raises:
        subprocess.CalledProcessError: If a pod did not start, answer or end as it should; its output is printed.
    """
    described = {name: {**asdict(image), "root": str(image.root)} for name, image in images.items()}
    script = 'ip link set lo up && exec "$0" -m images.pod_trial "$1" "$2"'
    command = ["unshare", "--net", "sh", "-c", script, sys.executable, example, json.dumps(described)]
    folder = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{folder}/tests", folder, f"{folder}/services"])}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder, env=environment)
    return done.stdout.strip()


def main(example: str, images: Mapping[str, Image]) -> None:
    """Start, ask, stop; print the answer.

    Raises:
        RuntimeError: If a pod does not end by itself after SIGTERM.
    """
    manifests = cast("list[Manifest]", manifests_of(render(read_example(example))))
    pods = pods_of(manifests)
    hosts = images["control"].root.parent / f"hosts-{example}"
    hosts.write_text(hosts_file(manifests, pods), "utf-8")
    gateway = next(pod for pod in pods if pod.container["name"] == "gateway")
    script = (CHART / "files" / "completion_test.py").read_text("utf-8")
    model = next(text.partition("=")[2] for text in gateway.arguments if text.startswith("--model-name="))
    variables = {"GATEWAY": f"http://{gateway.address}:{_GATEWAY_PORT}", "MODEL": model}
    command = _confined(images["control"], ["python", "-c", script], hosts)
    with _running(pods, images, hosts) as processes:
        _ask(command, {**images["control"].environment, **variables}, processes)


def _ask(
    command: Sequence[str], environment: Mapping[str, str], processes: Mapping[str, subprocess.Popen[bytes]]
) -> None:
    """Run the script of `helm test` until it passes; each run waits a minute for the nodes.

    Raises:
        RuntimeError: If a pod ends meanwhile, or the last run fails.
    """
    for _ in range(_NUM_ATTEMPTS):
        if subprocess.run(command, env=environment, timeout=_ANSWER_SECONDS).returncode == 0:
            return
        if ended := [name for name, process in processes.items() if process.poll() is not None]:
            raise RuntimeError(f"ended while it should serve: {', '.join(ended)}")
    raise RuntimeError("the gateway gave no answer")


@contextmanager
def _running(
    pods: Sequence[Pod], images: Mapping[str, Image], hosts: Path
) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    logs = {pod.name: hosts.with_name(f"{pod.name}.log") for pod in pods}
    try:
        for pod in pods:
            image = images[pod.image]
            command = _confined(image, [*image.entrypoint, *pod.arguments], hosts)
            with logs[pod.name].open("wb") as log:
                processes[pod.name] = subprocess.Popen(
                    command, env={**image.environment, **pod.environment}, stdout=log, stderr=subprocess.STDOUT
                )
        yield processes
        _stop(processes)
    except BaseException:
        for name in processes:
            print(f"--- {name}\n{logs[name].read_text('utf-8', 'replace')[-3000:]}", file=sys.stderr)
        raise
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _stop(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Ask all to end, as the kubelet does, and wait for them.

    Raises:
        RuntimeError: If one ends otherwise, or not in time.
    """
    for process in processes.values():
        # `unshare` waits for the process that is number 1 in its namespace, and passes no signal on.
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
        os.kill(int(first), signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline and any(process.poll() is None for process in processes.values()):
        time.sleep(0.1)
    if wrong := {name: process.returncode for name, process in processes.items() if process.poll() not in _GOOD_ENDS}:
        raise RuntimeError(f"did not end by themselves: {wrong}")


def _confined(image: Image, command: Sequence[str], hosts: Path) -> list[str]:
    confinement = Confinement({"/etc/hosts": hosts}, user=image.user, is_read_only=True)
    return command_in(image.root, command, confinement, work_dir=image.work_dir)


if __name__ == "__main__":
    _, wanted, text = sys.argv
    main(wanted, {name: Image(**{**fields, "root": Path(fields["root"])}) for name, fields in json.loads(text).items()})
