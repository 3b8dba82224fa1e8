"""The mock runner: no weights, the timing of any hardware, tokens that prove which KV bytes they were made from."""

from baton.engine.runners.mock.loader import load_mock_runner
from baton.engine.runners.mock.runner import MockRunner

__all__ = ["MockRunner", "load_mock_runner"]
