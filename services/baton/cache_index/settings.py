"""Settings of the cache index."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

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
    max_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Blocks of all nodes and tiers that are known at most; of others no prefix is expected; auto: what memory has room
    for, about 400 bytes each."""
    max_node_share: float = Field(default=0.25, gt=0, le=1)
    """Share of those that a node keeps whatever others have; beyond it, it has what they leave."""
    drain_seconds: float = Field(default=0.5, ge=0)
    """Grace for running calls on SIGTERM. Short: nodes publish for ever and connect again."""
