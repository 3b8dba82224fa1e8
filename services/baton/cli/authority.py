"""`baton authority`: the certificates and the token of a deployment that nobody else makes them for."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from baton.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Certificates and join token of a deployment (needs the extra `agent`).")

_AUTHORITY_DAYS = 3650
FOLDER = Annotated[Path, typer.Argument(help="Folder of the files.")]


@app.command("create")
def create(
    folder: FOLDER,
    server_name: Annotated[str, typer.Option(help="Name that all certificates bear (--tls-server-name).")] = "baton",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the processes' certificate.")] = 365,
) -> None:
    """Make an authority, a certificate for the processes that you start, and a join secret."""
    from baton.security.authority import certificate_request, create_authority, create_key
    from baton.security.join_token import create_secret

    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: its files would be replaced")
    now = datetime.now(UTC)
    authority, key = create_authority(now, timedelta(days=_AUTHORITY_DAYS)), create_key()
    certificate = authority.sign(
        certificate_request(key, "baton"),
        node_id="baton",
        server_name=server_name,
        now=now,
        lifetime=timedelta(days=days),
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {"ca.crt": authority.certificate, "ca.key": authority.key, "tls.crt": certificate, "tls.key": key}
    for name, content in (files | {"join.secret": create_secret().encode("ascii")}).items():
        _write(folder / name, content)
    print(f"{folder}: ca.crt, ca.key, tls.crt, tls.key, join.secret")


@app.command("token")
def token(folder: FOLDER) -> None:
    """Print the token by which machines join: the secret, and the authority by which they know the router."""
    from baton.security.join_token import JoinToken, first_certificate, read_secret

    try:
        authority = first_certificate((folder / "ca.crt").read_bytes())
    except OSError as error:
        raise ConfigurationError(f"authority: {error}") from error
    print(JoinToken(read_secret(folder / "join.secret"), authority).text)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
