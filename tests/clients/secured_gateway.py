"""A gateway that asks clients for TLS and a key, beside the one of a cluster that asks for neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import trustme

from system.cluster import Cluster
from system.plan import HOST, free_ports
from system.process import ServedProcess

_KEY = "a-key-of-the-tests"


@contextmanager
def secured_gateway(folder: Path, cluster: Cluster) -> Iterator[Mapping[str, str]]:
    """Run it, and tell of it as clients are told: BATON_GRPC_TLS, BATON_CA, BATON_KEY."""
    authority, ports = trustme.CA(), free_ports(("http", "grpc"))
    certificate = authority.issue_cert(HOST, "localhost")
    authority_file, certificate_file, key_file, keys = (folder / name for name in ("ca.pem", "c.pem", "k.pem", "keys"))
    authority.cert_pem.write_to_path(str(authority_file))
    certificate.private_key_pem.write_to_path(str(key_file))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(certificate_file), append=True)
    keys.write_text(f"tests:{_KEY}\n")
    settings = {
        **cluster.processes["gateway"].settings,
        "http_port": str(ports["http"]),
        "grpc_port": str(ports["grpc"]),
        "api_keys_file": str(keys),
        "grpc_cert_file": str(certificate_file),
        "grpc_key_file": str(key_file),
    }
    process = ServedProcess("gateway-secured", "gateway", settings, {}, folder / "gateway-secured.log")
    process.start()
    try:
        address = f"{HOST}:{ports['grpc']}"
        credentials = grpc.ssl_channel_credentials(authority_file.read_bytes())
        with grpc.secure_channel(address, credentials) as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
        yield {"BATON_GRPC_TLS": address, "BATON_CA": str(authority_file), "BATON_KEY": _KEY}
    finally:
        process.kill()
