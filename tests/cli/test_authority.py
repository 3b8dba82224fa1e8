"""`baton authority`."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.errors import ConfigurationError
from baton.security.access import Party, caller_of


def test_files_are_for_their_owner_alone_and_never_replaced(tmp_path: Path) -> None:
    """A second authority in the same folder would lock every member out."""
    folder = tmp_path / "deployment"
    done = CliRunner().invoke(make_app(), ["authority", "create", str(folder)])

    again = CliRunner().invoke(make_app(), ["authority", "create", str(folder)])

    assert done.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"ca.crt", "ca.key", "tls.crt", "tls.key", "join.secret"}
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077] == []
    assert isinstance(again.exception, ConfigurationError)


def test_the_processes_certificate_fits_its_key_and_the_authority(tmp_path: Path) -> None:
    """OpenSSL takes both."""
    folder = tmp_path / "deployment"
    CliRunner().invoke(make_app(), ["authority", "create", str(folder)])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")

    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(("name", "party"), [("gateway", Party.GATEWAY), ("mac-1", Party.NODE)])
def test_a_process_may_have_a_certificate_of_its_own(tmp_path: Path, name: str, party: Party) -> None:
    """It says which process it is; the one that all share says nothing."""
    folder = tmp_path / "deployment"
    CliRunner().invoke(make_app(), ["authority", "create", str(folder)])

    done = CliRunner().invoke(make_app(), ["authority", "issue", str(folder), name])
    again = CliRunner().invoke(make_app(), ["authority", "issue", str(folder), name])

    assert done.exit_code == 0
    subject = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes()).subject
    names = [str(each.value) for each in subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    assert caller_of(names).party is party
    assert isinstance(again.exception, ConfigurationError)


@pytest.mark.parametrize("name", ["baton", "llm", "node", "joiner", "client"])
def test_no_process_of_its_own_is_called_like_all_or_a_kind(tmp_path: Path, name: str) -> None:
    """A certificate of `baton`, or of the servers' name, would speak for all."""
    folder = tmp_path / "deployment"
    CliRunner().invoke(make_app(), ["authority", "create", str(folder)])

    done = CliRunner().invoke(make_app(), ["authority", "issue", str(folder), name, "--server-name", "llm"])

    assert isinstance(done.exception, ConfigurationError)
    assert not (folder / f"{name}.crt").exists()


def test_a_token_needs_the_files(tmp_path: Path) -> None:
    """The message says which is missing."""
    done = CliRunner().invoke(make_app(), ["authority", "token", str(tmp_path)])

    assert isinstance(done.exception, ConfigurationError)
    with pytest.raises(ConfigurationError, match=r"ca\.crt"):
        raise done.exception
