"""TLS credentials of gRPC servers and channels, made from the same files as every other listener's.

Rule 1: a server asks for the newest files at every handshake, in a thread of gRPC's: nothing is restarted.
Rule 2: a channel keeps what it was made with; its owner makes a new one after a reload.
Rule 3: gRPC for Python either requires client certificates or does not ask for any: OPTIONAL asks for none.
"""

from __future__ import annotations

import threading
from typing import Any

import grpc

from georelay.tls import ClientAuth, PemTexts, TlsContexts


def server_credentials(contexts: TlsContexts) -> Any:
    """Return credentials for `add_secure_port` that follow the files of `contexts`."""
    required = contexts.settings.client_auth is ClientAuth.REQUIRED
    version, pem = contexts.pem()
    lock = threading.Lock()
    seen = version

    def fetch() -> Any:
        nonlocal seen
        with lock:  # gRPC calls from several threads
            newest, texts = contexts.pem()
            if newest == seen:
                return None
            seen = newest
        return _configuration(texts)

    return grpc.dynamic_ssl_server_credentials(_configuration(pem), fetch, require_client_authentication=required)


def channel_credentials(contexts: TlsContexts) -> Any:
    """Return credentials for `secure_channel` from the newest files."""
    _, pem = contexts.pem()
    return grpc.ssl_channel_credentials(root_certificates=pem.ca, private_key=pem.key, certificate_chain=pem.cert)


def _configuration(pem: PemTexts) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.ca)
