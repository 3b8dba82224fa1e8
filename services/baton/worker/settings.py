"""Settings of a worker that plays both parts: it generates, and computes prompts for others as well as for itself.

What a node that is pinned to one part takes, a worker takes too, by the same names.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic_settings import SettingsConfigDict

from baton.decode.settings import DecodeSettings
from baton.prefill.settings import PrefillSettings


class WorkerSettings(PrefillSettings, DecodeSettings):
    """Read from the environment, prefix BATON_WORKER_; arguments win.

    What one part refuses the worker refuses: its KV must be exact (`kv_quantization` none), for others take it.
    """

    model_config = SettingsConfigDict(env_prefix="BATON_WORKER_")

    group: ClassVar[str] = "Worker"

    port: int = 8050
    """Port to listen on; 0: any free one."""
