"""The API key, which comes from the environment: never from a command line, never into a file."""

from __future__ import annotations

import os


def headers_from(api_key_env: str | None) -> dict[str, str]:
    """Return the headers of every request: the API key of an environment variable.

    Raises:
        ValueError: If the variable is empty.
    """
    if api_key_env is None:
        return {}
    if not os.environ.get(api_key_env):
        raise ValueError(f"the environment variable {api_key_env} is empty")
    return {"Authorization": f"Bearer {os.environ[api_key_env]}"}
