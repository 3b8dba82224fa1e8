"""What a process opens to other machines, and that it may: beyond loopback by TLS, or by an explicit `--insecure`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from ipaddress import ip_address
from typing import ClassVar, Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

log = logging.getLogger(__name__)


class ExposureSettings(BaseSettings):
    """Settings of services that listen."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    group: ClassVar[str] = "TLS"

    insecure: bool = False
    """Whether to listen beyond loopback as it is, where the settings leave a door open: without TLS, or without keys.
    Logged at every start, and shown in /ui."""

    def exposures(self) -> Sequence[str]:
        """Return what others could use who reach this process from another machine, a sentence each."""
        return ()

    @model_validator(mode="after")
    def _check_exposures(self) -> Self:
        if not self.insecure and (exposures := self.exposures()):
            raise ValueError(f"{'; '.join(exposures)}; or pass --insecure if none but friends can reach it")
        return self


def is_loopback(host: str) -> bool:
    """Return whether none but this machine reaches what listens on a host; of names, localhost alone is known."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def warn_of_exposures(settings: BaseSettings) -> None:
    """Log what a process leaves open, as it was told to."""
    if isinstance(settings, ExposureSettings):
        for door in settings.exposures():
            log.warning("insecure %s", door)
