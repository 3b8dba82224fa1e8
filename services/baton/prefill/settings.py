"""Settings of a prefill node."""

from __future__ import annotations

from pydantic_settings import SettingsConfigDict

from baton.worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """Read from the environment, prefix BATON_PREFILL_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_PREFILL_")

    port: int = 8020
    """Port to listen on; 0: any free one."""
