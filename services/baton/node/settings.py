"""Settings that prefill and decode nodes share."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from baton.config.memory_budget import Claim
from baton.config.settings import REPEATABLE, ServiceSettings
from baton.discovery.endpoints import parse_target
from baton.errors import ConfigurationError
from baton.rpc.server import host_port
from baton.security.tls import ServerTlsSettings
from baton.telemetry.metrics_server import MetricsSettings
from baton.weight_transfer.pace import WeightSettings
from baton.weights.hub import ModelFolder
from baton.weights.model_name import served_name_of

EngineName = Literal["torch", "mlx", "mock"]
MAX_ADAPTER_NAME_CHARACTERS = 128
MOST_HOST_KV_BYTES = 1 << 30
"""Host memory for KV where nobody says how much."""


class CheckpointSettings(ServiceSettings):
    """What is computed: a checkpoint, adapters, and their number formats."""

    group: ClassVar[str] = "Model"

    model_dir: ModelFolder
    """Hugging Face folder with config.json, tokenizer and safetensors, or `org/name[@revision]` of a hub."""
    model_name: str = ""
    """Name under which the model is served; empty: the hub's, or the folder's name."""
    lora: str = Field(default="", json_schema_extra={REPEATABLE: True})
    """NAME=FOLDER of LoRA adapters in PEFT's format, separated by commas; the flag may be given several times."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "float32"
    """Number format of weights and KV cache; auto: bfloat16 on GPUs and on processors with AMX, else float32."""
    weight_dtype: Literal["auto", "int8", "int4", "fp8"] = "auto"
    """For engine torch: number format of the layers' weights; auto: `dtype`. Equal on nodes that work together."""

    @field_validator("model_dir")
    @classmethod
    def _check_model_dir(cls, value: Path) -> Path:
        if not (value / "config.json").is_file():
            raise ValueError(f"{value} is no model folder: it has no config.json")
        return value

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        names = [name for name, _ in self._adapters()]
        for name in names:
            if name == self.served_name or names.count(name) > 1:
                raise ValueError(f"lora: {name!r} names more than one of model and adapters")
        return self

    @property
    def served_name(self) -> str:
        """Return the name under which the model is served."""
        return self.model_name or served_name_of(self.model_dir)

    @property
    def adapter_folders(self) -> Mapping[str, Path]:
        """Return the folders of adapters by name."""
        return dict(self._adapters())

    def _adapters(self) -> list[tuple[str, Path]]:
        """Return name and folder of every adapter, as they were given; ValueError if one has no name or no folder."""
        adapters = []
        for part in filter(None, map(str.strip, self.lora.split(","))):
            name, equals, folder = part.partition("=")
            if not (equals and folder and name.isprintable() and 1 <= len(name) <= MAX_ADAPTER_NAME_CHARACTERS):
                raise ValueError(f"lora: expected NAME=FOLDER, got {part[:200]!r}")
            adapters.append((name, Path(folder)))
        return adapters


class EngineSettings(ServiceSettings):
    """The framework that runs the model, and the device."""

    group: ClassVar[str] = "Engine"

    engine: EngineName = "torch"
    """Framework that runs the model; mock: none, with the timing of `mock_hardware`."""
    model_code: Literal["auto", "baton", "transformers"] = "auto"
    """For engine torch: whose forward pass is run; auto: Baton's where it computes what transformers' does."""
    device: str = "cpu"
    """torch device, e.g. cpu or cuda:0; mlx chooses by itself."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """For engine torch: GPUs of this host that share each layer out, from `device` on; on a CPU, processes."""
    num_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of the engine; 0: all cores that this process may use but one."""


class NodeAddressSettings(ServiceSettings):
    """Where a node listens, under which name others know it, and whom it tells."""

    group: ClassVar[str] = "Addresses"
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    advertise_address: str = ""
    """host or host:port under which other nodes reach this one; empty: where it listens."""
    node_id: str = Field(default="", pattern="^[a-z0-9-]{0,63}$")
    """Name of the node, stable over restarts; empty: role, host name and port."""
    router_address: str = "127.0.0.1:8010"
    """host:port of each router, or kubernetes://SERVICE[.NAMESPACE]:PORT, whose pods are followed."""
    cache_index_address: str = "127.0.0.1:8011"
    """host:port of each cache index, or kubernetes://SERVICE[.NAMESPACE]:PORT, whose pods are followed."""

    @field_validator("router_address", "cache_index_address")
    @classmethod
    def _check_target(cls, value: str) -> str:
        try:
            parse_target(value)
        except ConfigurationError as error:
            raise ValueError(error.message) from error
        return value

    def advertised(self, port: int) -> str:
        """Return host:port under which other nodes reach this one, given the port that it listens on."""
        return self.advertise_address if self._has_advertised_port else host_port(self.advertised_host, port)

    @property
    def advertised_host(self) -> str:
        """Return the host under which other nodes reach this one."""
        if self._has_advertised_port:
            return self.advertise_address.rpartition(":")[0].strip("[]")
        return self.advertise_address or self.host

    @property
    def _has_advertised_port(self) -> bool:
        host, colon, port = self.advertise_address.rpartition(":")
        is_bare_ipv6 = ":" in host and not host.endswith("]")
        return bool(colon) and port.isdigit() and not is_bare_ipv6

    def name_of(self, role: str, port: int) -> str:
        """Return the node's name."""
        host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname().lower())
        return self.node_id or f"{role}-{host[:40]}-{port}"


class KvCacheSettings(ServiceSettings):
    """Where K and V are kept: the pool on the device, host memory, disk."""

    group: ClassVar[str] = "KV cache"

    num_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """KV blocks in the pool; auto: on a GPU what weights and passes leave of `device_memory_share`, on a CPU 2048, or
    as many as one sequence of the model's context needs, but no more than a quarter of its free memory holds."""
    planned_kv_bytes: int = Field(default=0, ge=0)
    """Size of the pool where num_blocks is auto, as far as there is room: a plan's for the load that it expects. 0: as
    num_blocks says."""
    device_memory_share: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that this node may take where num_blocks is auto, weights included; nodes on one GPU
    share it out."""
    block_tokens: int = Field(default=16, ge=1, le=1024)
    """Tokens of one KV block. Equal on nodes that work together."""
    kv_quantization: Literal["none", "8"] = "none"
    """For engine mlx: bits in which K and V are kept, with scales; none: `dtype`. The wire has `dtype` either way."""
    host_kv_bytes: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Host memory for KV that leaves the pool, of requests and of the prefix cache; 0: it is always computed again;
    auto: a share of the memory that the model leaves, up to half the size of the pool and 1 GiB."""
    disk_kv_dir: str = ""
    """Local folder for the KV of the prefix cache, which outlives the process; of one node. Empty: none."""
    disk_kv_bytes: int = Field(default=2**34, ge=1)
    """Size of the files in `disk_kv_dir` together; the least recently used go first."""

    def memory_claims(self) -> Sequence[Claim]:
        """Return what holds main memory besides model and blocks."""
        return [Claim("host_kv_bytes", MOST_HOST_KV_BYTES, given_bytes=given(self.host_kv_bytes))]

    @model_validator(mode="after")
    def _check_disk(self) -> Self:
        if self.disk_kv_dir and not self.host_kv_bytes:
            raise ValueError("disk_kv_dir needs host_kv_bytes above 0: blocks go to disk and come back by host memory")
        return self


class SchedulingSettings(ServiceSettings):
    """What is computed together, and who waits."""

    group: ClassVar[str] = "Scheduling"

    max_batch_size: int = Field(default=64, ge=1)
    """Requests that hold blocks at once."""
    max_step_tokens: int = Field(default=512, ge=1)
    """Positions computed in one pass; longer prompts are computed in chunks."""
    share_prompts: bool = True
    """Whether what requests that come together have in common is computed once."""
    target_tpot_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Milliseconds between tokens that prompts beside a request may cause, but 16 positions always fit; 0: any."""
    max_waiting: int = Field(default=1024, ge=1)
    """Requests waiting at most; more are refused."""


class NodeHealthSettings(ServiceSettings):
    """When a node is unwell, and how it ends."""

    group: ClassVar[str] = "Health and shutdown"

    stuck_seconds: float = Field(default=30.0, gt=0)
    """An engine that stands still for longer makes the node not ready, ten times that its process not healthy; above
    the time of the longest pass that cannot be predicted yet: others are judged by that."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """Time that running requests get after a stop signal."""


class KubernetesSettings(ServiceSettings):
    """What the chart tells a node of its pod."""

    group: ClassVar[str] = "Kubernetes"

    kubernetes_node: str = ""
    """Name of the Kubernetes node of this pod, which is told to routers; empty: none."""
    read_kubernetes_node: bool = False
    """Whether that node's labels, taints and capacity are read and told too; the pod's account must be allowed to."""
    accelerators: str = Field(default="", pattern=r"^([a-z0-9./-]+=[1-9][0-9]*)?$")
    """Accelerators that this pod was given, RESOURCE=COUNT, e.g. nvidia.com/gpu=2; empty: none."""

    @property
    def accelerator_counts(self) -> dict[str, int]:
        """Return how many accelerators this pod was given, by resource."""
        resource, _, count = self.accelerators.partition("=")
        return {resource: int(count)} if resource else {}


class MockSettings(ServiceSettings):
    """What engine mock plays."""

    group: ClassVar[str] = "Engine mock"
    mock_hardware: str = "m3-ultra"
    """For engine mock: preset whose timing it takes (dgx-spark, m3-ultra, m2, h200, a100)."""
    mock_shape: str = ""
    """For engine mock: model size it stands for (llama-3.1-8b, ...); empty: that of the folder."""
    mock_step_seconds: float | None = Field(default=None, ge=0)
    """For engine mock: time of every step, whatever it computes; none: that of the roofline."""
    mock_time_scale: float = Field(default=1.0, ge=0.1, le=100.0)
    """For engine mock: what its times are multiplied by, and its declared speed divided by: a slower mock of the same
    device, for a host that is too busy to keep up with it."""


def given(value: int | Literal["auto"]) -> int | None:
    """Return a number that was given by hand; None: none was."""
    return None if value == "auto" else value


class NodeSettings(
    CheckpointSettings,
    EngineSettings,
    NodeAddressSettings,
    KvCacheSettings,
    SchedulingSettings,
    WeightSettings,
    NodeHealthSettings,
    MetricsSettings,
    ServerTlsSettings,
    KubernetesSettings,
    MockSettings,
):
    """Read from the environment; arguments win. Subclasses set the prefix."""
