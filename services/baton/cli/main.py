"""The entry point `baton`. Exit status: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted."""

from __future__ import annotations

import sys
from typing import NoReturn

from baton.errors import BatonError, ConfigurationError


def main() -> NoReturn:
    """Run the command line and leave with its exit status."""
    try:
        from baton.cli.app import app_for  # here, so that Ctrl-C while it loads ends like any other

        app_for(sys.argv[1:])()
    except ConfigurationError as error:
        _fail(error.message, 2)
    except BatonError as error:
        _fail(error.message, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _fail(message: str, status: int) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print("[bold red]error:[/] ", end="")
    console.print(message, markup=False, soft_wrap=True)
    sys.exit(status)
