"""`baton authority`: the certificates and the token of a deployment that nobody else makes them for."""

from __future__ import annotations

import base64
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from baton.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Certificates and join token of a deployment (needs the extra `agent`).")

FOLDER = Annotated[Path, typer.Argument(help="Folder of the files.")]


@app.command("create")
def create(
    folder: FOLDER,
    server_name: Annotated[str, typer.Option(help="Name that all certificates bear (--tls-server-name).")] = "baton",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the processes' certificate.")] = 365,
) -> None:
    """Make an authority, a certificate for the processes that you start, and a join secret."""
    from baton.security.authority import AUTHORITY_LIFETIME, create_authority, deployment_files
    from baton.security.join_token import create_secret

    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: its files would be replaced")
    now = datetime.now(UTC)
    authority = create_authority(now, AUTHORITY_LIFETIME)
    files = dict(deployment_files(authority, server_name, now, timedelta(days=days)))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in (files | {"join.secret": create_secret().encode("ascii")}).items():
        _write(folder / name, content)
    print(f"{folder}: ca.crt, ca.key, tls.crt, tls.key, join.secret")


@app.command("secret")
def secret(name: Annotated[str, typer.Argument(help="Name of the Secret.")]) -> None:
    """Keep an authority and a join secret in a Secret of this pod's namespace, unless it is there already."""
    from baton.discovery.api_server import CONFLICT, RefusedError, own_api_server
    from baton.security.authority import AUTHORITY_LIFETIME, create_authority
    from baton.security.join_token import create_secret

    authority = create_authority(datetime.now(UTC), AUTHORITY_LIFETIME)
    files = {"ca.crt": authority.certificate, "ca.key": authority.key, "join.secret": create_secret().encode("ascii")}
    data = {key: base64.b64encode(content).decode("ascii") for key, content in files.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    server = own_api_server()
    try:
        server.ask(f"/api/v1/namespaces/{server.namespace}/secrets", body)
    except RefusedError as error:
        if error.status != CONFLICT:
            raise
        print(f"Secret {name} is there already, and is kept")
        return
    print(f"Secret {name}: {', '.join(files)}")


@app.command("issue")
def issue(
    folder: FOLDER,
    name: Annotated[str, typer.Argument(help="Whom it names: gateway, router, cache-index, admin, or a node id.")],
    server_name: Annotated[str, typer.Option(help="Name that all certificates bear (--tls-server-name).")] = "baton",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the certificate.")] = 365,
) -> None:
    """Make a certificate of a process's own, which may do what such a process does and nothing else."""
    from baton.security.access import RESERVED_NAMES, SINGLE_NAMES
    from baton.security.authority import Authority, certificate_request, create_key

    if name in {*RESERVED_NAMES, server_name} - SINGLE_NAMES:
        raise ConfigurationError(f"name: expected {', '.join(sorted(SINGLE_NAMES))} or a node id, got {name!r}")
    if not re.fullmatch(r"[a-z0-9-]{1,63}", name):
        raise ConfigurationError(f"name: expected 1 to 63 characters of a-z 0-9 -, got {name[:80]!r}")
    authority, key = Authority.read(folder / "ca.crt", folder / "ca.key"), create_key()
    certificate = authority.sign(
        certificate_request(key, name),
        node_id=name,
        server_name=server_name,
        now=datetime.now(UTC),
        lifetime=timedelta(days=days),
    )
    try:
        _write(folder / f"{name}.key", key)
        _write(folder / f"{name}.crt", certificate)
    except FileExistsError as error:
        raise ConfigurationError(f"{error.filename} is there already: remove it first") from error
    print(f"{folder}: {name}.crt, {name}.key")


@app.command("token")
def token(
    folder: FOLDER,
    hours: Annotated[float, typer.Option(min=0.01, max=8760, help="Hours for which it holds.")] = 24.0,
    machines: Annotated[int, typer.Option(min=1, max=9999, help="Machines that it lets in.")] = 1,
    node: Annotated[str, typer.Option(help="Node id that it is for; else any that the assignments allow.")] = "",
) -> None:
    """Print a token by which machines join: a pass, and the authority by which they know the router."""
    from baton.security.join_token import JoinToken, create_pass, first_certificate, read_secret

    try:
        authority = first_certificate((folder / "ca.crt").read_bytes())
    except OSError as error:
        raise ConfigurationError(f"authority: {error}") from error
    ends_at = datetime.now(UTC) + timedelta(hours=hours)
    shown = create_pass(read_secret(folder / "join.secret"), ends_at=ends_at, num_machines=machines, node_id=node)
    print(JoinToken(shown, authority).text)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
