"""The number of connections that the system lets this process hold."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it; 0 where the system has no such limit.

    Shells set 1024, which a thousand idle clients use up: then nobody else gets in.
    """
    try:
        import resource
    except ImportError:  # Windows
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS names a hard limit that it does not grant
            log.warning("open_files_limit_kept limit=%d cause=%r", soft, str(error))
            return soft
    log.info("open_files_limit limit=%d", hard)
    return hard
