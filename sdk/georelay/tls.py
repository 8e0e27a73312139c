"""TLS for listeners and dialers: contexts that follow their files, and the names that a certificate proves.

Rule 1: TLS 1.2 or newer, forward secrecy and authenticated ciphers only, no compression, no renegotiation, and no
        resumption by tickets: who connects after a certificate authority was taken away is checked by the new one.
Rule 2: files are looked at again at the first handshake after CHECK_S; new files that cannot be used leave the old ones
        in use, with an error in the log and in the metrics. Connections that are open stay open.
Rule 3: only a certificate that was verified proves anything; a name that is not plain text proves nothing.
"""

from __future__ import annotations

import enum
import hashlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from georelay.errors import ConfigError
from georelay.library_log import log

CHECK_S: Final = 5.0  # how late a changed file may be noticed
HANDSHAKE_S: Final = 10.0  # from accepting (or connecting) to a finished handshake
FILE_BYTES_MAX: Final = 1024 * 1024
PRINCIPAL_CHARS_MAX: Final = 256
# TLS 1.2: ephemeral key exchange with AEAD only. TLS 1.3 has no others.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ESCAPED: Final = re.compile(r'([,+"\\<>;=#])')
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}


class ClientAuth(enum.StrEnum):
    """What a listener wants of the certificates of those who connect."""

    NONE = "none"  # none is asked for
    OPTIONAL = "optional"  # one that is shown must be right
    REQUIRED = "required"


class PrincipalFrom(enum.StrEnum):
    """Which name of a client's certificate becomes its principal."""

    CN = "cn"  # the one common name of the subject
    DN = "dn"  # the whole subject in the order of RFC 4514, as Kafka writes it
    SAN = "san"  # the first URI, else the first DNS name, else the first e-mail address


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files in PEM form and what is asked of the other end.

    Args:
        cert_file: own certificate, followed by its intermediates; None: none is shown.
        key_file: its key, without a passphrase.
        ca_file: whom to trust; None: the system's authorities (dialing), nobody (listening).
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    principal_from: PrincipalFrom = PrincipalFrom.CN

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("tls: cert_file and key_file belong together: set both or none")
        if self.client_auth is not ClientAuth.NONE and self.ca_file is None:
            raise ConfigError(f'tls: client_auth = "{self.client_auth.value}" needs ca_file: whom to trust')

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that are set."""
        return tuple(path for path in (self.cert_file, self.key_file, self.ca_file) if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PemTexts:
    """The same files as bytes, for gRPC. The key never appears in a text form of this."""

    cert: bytes | None
    ca: bytes | None
    key: bytes | None

    def __repr__(self) -> str:
        return "PemTexts(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    server: ssl.SSLContext | None
    client: ssl.SSLContext
    pem: PemTexts
    version: int


_Marks = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """What one listener or dialer uses for its next handshake.

    Args:
        name: for the log and the metrics, such as "kafka".
        monotonic_s, wall_s: clocks; others only in tests.

    Raises:
        ConfigError: a file cannot be read, or certificate and key do not belong together.
    """

    def __init__(
        self,
        settings: TlsSettings,
        *,
        name: str,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        check_s: float = CHECK_S,
    ) -> None:
        self.settings = settings
        self.name = name
        self.reloads = 0
        self.reload_failures = 0
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._check_s = check_s
        self._marks = _marks(settings.files)
        self._checked_s = monotonic_s()
        self._loaded = _load(settings, name, version=0)
        self._expiries: tuple[int, dict[str, float]] | None = None
        self._spoken: list[str] = []
        self._lock = threading.Lock()  # gRPC asks from threads of its own

    def server(self) -> ssl.SSLContext:
        """Return the context for the next connection that is accepted."""
        context = self._current().server
        assert context is not None, f"{self.name} has no certificate to listen with"
        if self._spoken:
            context.set_alpn_protocols(self._spoken)
        return context

    def speak(self, *protocols: str) -> None:
        """Agree on these protocols (ALPN) with whoever asks for one of them; without this there is no agreement."""
        self._spoken = list(protocols)

    def client(self) -> ssl.SSLContext:
        """Return the context for the next connection that is dialed; host names are checked."""
        return self._current().client

    def pem(self) -> tuple[int, PemTexts]:
        """Return the number of the reload and what was loaded."""
        loaded = self._current()
        return loaded.version, loaded.pem

    def principal_of(self, ssl_object: Any) -> str:
        """Return whom the certificate of the other end names; see the function of this name."""
        return principal_of(ssl_object, self.settings.principal_from)

    def expires_s(self) -> dict[str, float]:
        """Return seconds from now to the end of the own certificate ("cert") and of the first authority to end ("ca").

        Negative when it is over. Needs the package cryptography; a broker and a gateway have it.
        """
        from georelay.pki.certificates import earliest_end_s

        loaded = self._current()
        if self._expiries is None or self._expiries[0] != loaded.version:
            texts = {"cert": loaded.pem.cert, "ca": loaded.pem.ca}
            ends = {kind: earliest_end_s(text) for kind, text in texts.items() if text}
            self._expiries = (loaded.version, ends)
        now_s = self._wall_s()
        return {kind: end_s - now_s for kind, end_s in self._expiries[1].items()}

    def check(self) -> None:
        """Look at the files now, whenever they were looked at before."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        self._checked_s = self._monotonic_s()
        marks = _marks(self.settings.files)
        if marks == self._marks:
            return
        self._marks = marks  # broken files are tried again when they change again
        try:
            loaded = _load(self.settings, self.name, version=self._loaded.version + 1)
        except ConfigError as error:
            self.reload_failures += 1
            # The reason is the whole story; a traceback would only hide it.
            log.error("tls.reload_failed", listener=self.name, reason=str(error))
            return
        if _marks(self.settings.files) != marks:
            return  # they change right now: the next look takes them
        self._loaded = loaded
        self.reloads += 1
        log.info("tls.reloaded", listener=self.name)

    def _current(self) -> _Loaded:
        if self._monotonic_s() - self._checked_s >= self._check_s:
            self.check()
        return self._loaded


def client_contexts(
    *, ca: Path | None = None, cert: Path | None = None, key: Path | None = None, name: str = "client"
) -> TlsContexts:
    """Return what a client dials with. Raises ConfigError."""
    return TlsContexts(TlsSettings(cert_file=cert, key_file=key, ca_file=ca), name=name)


def principal_of(ssl_object: Any, principal_from: PrincipalFrom = PrincipalFrom.CN) -> str:
    """Return "User:" and the name in the verified certificate of the other end; "" when there is none."""
    certificate = None if ssl_object is None else ssl_object.getpeercert()
    if not certificate:
        return ""
    if principal_from is PrincipalFrom.SAN:
        kinds = dict(reversed(certificate.get("subjectAltName", ())))
        return _principal(kinds.get("URI") or kinds.get("DNS") or kinds.get("email") or "")
    return _principal(_subject_name(certificate.get("subject", ()), principal_from))


def principal_of_call(
    auth_context: Mapping[str, Sequence[bytes]], principal_from: PrincipalFrom = PrincipalFrom.CN
) -> str:
    """Return the same for a gRPC call: `context.auth_context()`."""
    if principal_from is PrincipalFrom.SAN:
        names = [_text(name) for name in auth_context.get("x509_subject_alternative_name", ())]
        uri = next((name for name in names if "://" in name), "")
        return _principal(uri or next((name for name in names if "@" not in name), "") or next(iter(names), ""))
    if principal_from is PrincipalFrom.DN:
        from georelay.pki.certificates import subject_of

        pem = next(iter(auth_context.get("x509_pem_cert", ())), b"")
        return _principal(_subject_name(subject_of(pem), principal_from)) if pem else ""
    names = [_text(name) for name in auth_context.get("x509_common_name", ())]
    return _principal(names[0] if len(names) == 1 else "")


def certificate_names(ssl_object: Any) -> frozenset[str]:
    """Return the DNS names of the verified certificate of the other end, in lower case."""
    certificate = None if ssl_object is None else ssl_object.getpeercert()
    if not certificate:
        return frozenset()
    return frozenset(value.lower() for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")


def call_names(auth_context: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """Return the alternative names of the verified certificate of a gRPC caller, in lower case."""
    return frozenset(_text(name).lower() for name in auth_context.get("x509_subject_alternative_name", ()))


def mesh_label(mesh_id: str) -> str:
    """Return the mesh id as one DNS label: itself in lower case if it is one, else a hash of it."""
    label = mesh_id.lower()
    if _DNS_LABEL.fullmatch(label):
        return label
    return "m-" + hashlib.sha256(mesh_id.encode()).hexdigest()[:32]


def broker_name(broker: int, mesh_id: str) -> str:
    """Return the DNS name that the certificate of a broker of this mesh must have for peers and links."""
    return f"broker-{broker}.{mesh_label(mesh_id)}"


def _principal(name: str) -> str:
    return f"User:{name}" if 0 < len(name) <= PRINCIPAL_CHARS_MAX and name.isprintable() else ""


def _subject_name(subject: Sequence[Sequence[tuple[str, str]]], principal_from: PrincipalFrom) -> str:
    if principal_from is PrincipalFrom.CN:
        names = [value for group in subject for kind, value in group if kind == "commonName"]
        return names[0] if len(names) == 1 else ""  # of two names neither is proven to be meant
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_ESCAPED.sub(_escape, value)}" for kind, value in group)
        for group in reversed(subject)
    )


def _escape(match: re.Match[str]) -> str:
    return "\\" + match[1]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _marks(files: Sequence[Path]) -> _Marks:
    """Return what changes when a file is replaced or written: (inode, size, mtime) of each, None where none is."""
    marks: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(marks)


def _load(settings: TlsSettings, name: str, *, version: int) -> _Loaded:
    """Read everything. Raises ConfigError."""
    pem = PemTexts(cert=_read(settings.cert_file), key=_read(settings.key_file), ca=_read(settings.ca_file))
    try:
        server = _server_context(settings) if settings.cert_file is not None else None
        client = _client_context(settings)
    except (ssl.SSLError, OSError, ValueError) as error:
        files = ", ".join(map(str, settings.files))
        reason = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error)
        raise ConfigError(f"tls of {name}: {files}: {reason.lower().replace('_', ' ')}") from error
    if settings.key_file is not None and settings.key_file.stat().st_mode & 0o007:
        log.warning("tls.key_readable_by_all", listener=name, file=str(settings.key_file), advice="chmod 600")
    return _Loaded(server=server, client=client, pem=pem, version=version)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN" not in raw:
        raise ConfigError(f"{path} is not a PEM file")
    return raw


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    _show(context, settings)
    if settings.client_auth is not ClientAuth.NONE:
        context.load_verify_locations(cafile=settings.ca_file)
        required = settings.client_auth is ClientAuth.REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    if settings.ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=settings.ca_file)
    if settings.cert_file is not None:
        _show(context, settings)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)


def _show(context: ssl.SSLContext, settings: TlsSettings) -> None:
    assert settings.cert_file is not None
    # A key with a passphrase must be an error, not a question at a terminal.
    context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")
