"""Settings of the cache index."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from baton.config.settings import ServiceSettings
from baton.security.tls import ServerTlsSettings
from baton.telemetry.metrics_server import MetricsSettings


class CacheIndexSettings(ServiceSettings, MetricsSettings, ServerTlsSettings):
    """Read from the environment, prefix BATON_CACHE_INDEX_; arguments win."""

    model_config = SettingsConfigDict(env_prefix="BATON_CACHE_INDEX_")

    group: ClassVar[str] = "Cache index"

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8011, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    drain_seconds: float = Field(default=0.5, ge=0)
    """Grace for running calls on SIGTERM. Short: nodes publish for ever and connect again."""
