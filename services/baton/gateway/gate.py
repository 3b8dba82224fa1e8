"""What every request of either API passes."""

from __future__ import annotations

from typing import NamedTuple

from baton.gateway.admission import Admission
from baton.gateway.api_keys import ApiKeys
from baton.gateway.traffic import Traffic


class Gate(NamedTuple):
    """Who may ask, how much at once, and the record of it."""

    keys: ApiKeys
    """Names the caller."""
    admission: Admission
    """Bounds the requests in work."""
    traffic: Traffic
    """Tells logs and metrics."""
