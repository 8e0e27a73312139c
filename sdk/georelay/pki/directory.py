"""The files of one mesh's authority.

pki.json              mesh id and what the authority may sign for
ca-N.crt, ca-N.key    authorities; the highest N with both files signs
bundle.crt            whom every process trusts: give this one out
NAME.crt, NAME.key    end certificates: broker-1001, gateway-NAME, client-NAME

Rule 1: keys have mode 0600; every file is written whole or not at all.
Rule 2: nothing is overwritten unless that was asked for.
Rule 3: rotation never leaves a moment in which two right certificates do not trust each other: first the new authority
        is trusted beside the old one, then certificates are issued anew, then the old one is dropped.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from georelay.errors import ConfigError
from georelay.pki.certificates import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    Signed,
    Wanted,
    common_name,
    host_names,
    is_signed_by,
    issue,
    new_authority,
    read_signed,
    serves,
)
from georelay.tls import broker_name

RECORD: Final = "pki.json"
BUNDLE: Final = "bundle.crt"
PRIVATE: Final = 0o600
PUBLIC: Final = 0o644
FILE_BYTES_MAX: Final = 1024 * 1024
_AUTHORITY: Final = re.compile(r"ca-([1-9][0-9]{0,5})\.crt")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One certificate as `georelay pki show` prints it."""

    name: str
    subject: str
    hosts: tuple[str, ...]
    not_after: datetime.datetime
    issuer: int  # number of the authority, 0: none of this directory
    trusted: bool  # is that authority in the bundle?


class PkiDirectory:
    """Open one with `create` or `open`.

    Args:
        now: current time with a time zone; another only in tests.
    """

    def __init__(
        self, path: Path, *, mesh_id: str, permitted: tuple[str, ...], now: Callable[[], datetime.datetime]
    ) -> None:
        self.path = path
        self.mesh_id = mesh_id
        self._permitted = permitted
        self._now = now

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        mesh_id: str,
        days: int = AUTHORITY_DAYS,
        permitted: tuple[str, ...] = (),
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> PkiDirectory:
        """Make a directory with a new authority. Raises ConfigError when there is one already."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {path}: {error.strerror}") from error
        pki = cls(path, mesh_id=mesh_id, permitted=permitted, now=now)
        with pki.locked():
            if (path / RECORD).exists() or (path / BUNDLE).exists():
                raise ConfigError(f"{path} holds an authority already; `georelay pki rotate` makes a new one beside it")
            authority = new_authority(mesh_id=mesh_id, number=1, now=now(), days=days, permitted=pki._permitted_names())
            pki._write_authority(1, authority)
            replace_file(path / BUNDLE, authority.cert_pem, mode=PUBLIC)
            record = {"version": 1, "mesh": mesh_id, "permitted": list(permitted)}
            replace_file(path / RECORD, json.dumps(record, indent=2).encode() + b"\n", mode=PUBLIC)
        return pki

    @classmethod
    def open(
        cls, path: Path, *, now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    ) -> PkiDirectory:
        """Open what `create` made. Raises ConfigError."""
        try:
            record = json.loads(_read(path / RECORD))
            mesh_id, permitted = str(record["mesh"]), tuple(map(str, record["permitted"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path / RECORD} is damaged: {error}") from error
        return cls(path, mesh_id=mesh_id, permitted=permitted, now=now)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process. Raises ConfigError when another one does."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise ConfigError(f"cannot use {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(f"{self.path}: another `georelay pki` works on it") from error
            yield
        finally:
            os.close(descriptor)

    # --- issuing ---------------------------------------------------------------------------------

    def issue_broker(
        self, broker: int, *, hosts: tuple[str, ...] = (), days: int = CERTIFICATE_DAYS, renew: bool = False
    ) -> Path:
        """Issue the certificate of a broker; returns its file. Raises ConfigError."""
        name = broker_name(broker, self.mesh_id)
        self._refuse_broker_names(hosts)
        wanted = Wanted(common_name=f"broker-{broker}", hosts=(name, *LOOPBACK_HOSTS, *hosts), days=days)
        return self._issue(f"broker-{broker}", wanted, renew=renew)

    def issue_gateway(
        self, name: str, *, hosts: tuple[str, ...] = (), days: int = CERTIFICATE_DAYS, renew: bool = False
    ) -> Path:
        """Issue the certificate of a gateway; returns its file. Raises ConfigError."""
        self._refuse_broker_names(hosts)
        wanted = Wanted(common_name=f"gateway-{name}", hosts=(*LOOPBACK_HOSTS, *hosts), days=days)
        return self._issue(f"gateway-{name}", wanted, renew=renew)

    def issue_client(self, name: str, *, days: int = CERTIFICATE_DAYS, renew: bool = False) -> Path:
        """Issue the certificate of a client, whose principal is User:NAME; returns its file. Raises ConfigError."""
        if name.lower().startswith(("broker-", "gateway-")):
            raise ConfigError(f"a client cannot be called {name}: it could be taken for a broker or a gateway")
        return self._issue(f"client-{name}", Wanted(common_name=name, serves=False, days=days), renew=renew)

    def _refuse_broker_names(self, hosts: tuple[str, ...]) -> None:
        domain = broker_name(1, self.mesh_id).partition(".")[2]
        for host in hosts:
            if host.lower().rstrip(".").endswith(f".{domain}"):
                raise ConfigError(f"--host {host}: only a broker's certificate has a name under {domain}, its own")

    def _issue(self, file: str, wanted: Wanted, *, renew: bool) -> Path:
        if _NAME.fullmatch(file) is None:
            raise ConfigError(f"{file[:80]!r} is no name of a file: letters, digits and . _ @ - are")
        with self.locked():
            target = self.path / f"{file}.crt"
            if target.exists() and not renew:
                raise ConfigError(f"{target} is there already; --renew replaces it")
            self._write_pair(file, issue(self.authority(), wanted, now=self._now()))
            return target

    # --- rotating --------------------------------------------------------------------------------

    def rotate(self, *, days: int = AUTHORITY_DAYS) -> int:
        """Make a new authority and trust it beside the old one; returns its number. Raises ConfigError."""
        with self.locked():
            trusted = self._trusted()
            if len(trusted) > 1:
                raise ConfigError(
                    "a rotation is under way: `georelay pki rotate --reissue`, then `georelay pki rotate --finish`"
                )
            number = max(self._numbers()) + 1
            authority = new_authority(
                mesh_id=self.mesh_id, number=number, now=self._now(), days=days, permitted=self._permitted_names()
            )
            # Trusted first: what it signs must never meet a process that was given a bundle without it.
            replace_file(self.path / BUNDLE, authority.cert_pem + _read(self.path / BUNDLE), mode=PUBLIC)
            self._write_authority(number, authority)
            return number

    def reissue(self) -> list[str]:
        """Issue every end certificate of an older authority anew, with a new key; returns their names."""
        with self.locked():
            authority = self.authority()
            renewed = []
            for listed in self.listed():
                if not listed.name.startswith("ca-") and listed.issuer != max(self._numbers()):
                    certificate = self._certificate(listed.name)
                    days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
                    wanted = Wanted(
                        common_name=common_name(certificate),
                        hosts=host_names(certificate),
                        serves=serves(certificate),
                        days=days,
                    )
                    self._write_pair(listed.name, issue(authority, wanted, now=self._now()))
                    renewed.append(listed.name)
            return renewed

    def finish(self) -> None:
        """Trust the newest authority only, and delete the keys of the others. Raises ConfigError."""
        with self.locked():
            newest = max(self._numbers())
            late = [row.name for row in self.listed() if not row.name.startswith("ca-") and row.issuer != newest]
            if late:
                raise ConfigError(
                    f"{', '.join(late)} would not be trusted any more: `georelay pki rotate --reissue` first"
                )
            replace_file(self.path / BUNDLE, _read(self.path / f"ca-{newest}.crt"), mode=PUBLIC)
            for number in self._numbers():
                if number != newest:
                    (self.path / f"ca-{number}.key").unlink(missing_ok=True)

    # --- reading ---------------------------------------------------------------------------------

    def authority(self) -> Signed:
        """Return the authority that signs. Raises ConfigError."""
        number = max(self._numbers(), default=0)
        try:
            return read_signed(_read(self.path / f"ca-{number}.crt"), _read(self.path / f"ca-{number}.key"))
        except ValueError as error:
            raise ConfigError(f"{self.path}: authority {number}: {error}") from error

    def ends(self, name: str) -> datetime.datetime | None:
        """Return when the certificate NAME ends, None when there is none. Raises ConfigError."""
        return self._certificate(name).not_valid_after_utc if (self.path / f"{name}.crt").exists() else None

    def listed(self) -> list[Listed]:
        """Return every certificate: authorities first, then the others by name. Raises ConfigError."""
        authorities = {number: self._certificate(f"ca-{number}") for number in self._numbers()}
        trusted = self._trusted()
        rows = []
        for file in sorted(self.path.glob("*.crt"), key=lambda file: (not _AUTHORITY.fullmatch(file.name), file.name)):
            if file.name == BUNDLE:
                continue
            certificate = self._certificate(file.stem)
            issuer = next((n for n, row in authorities.items() if is_signed_by(certificate, row)), 0)
            rows.append(
                Listed(
                    name=file.stem,
                    subject=certificate.subject.rfc4514_string(),
                    hosts=host_names(certificate),
                    not_after=certificate.not_valid_after_utc,
                    issuer=issuer,
                    trusted=issuer in authorities and authorities[issuer] in trusted,
                )
            )
        return rows

    def _certificate(self, name: str) -> x509.Certificate:
        path = self.path / f"{name}.crt"
        try:
            return x509.load_pem_x509_certificate(_read(path))
        except ValueError as error:
            raise ConfigError(f"{path} is no certificate: {error}") from error

    def _trusted(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(_read(self.path / BUNDLE))
        except ValueError as error:
            raise ConfigError(f"{self.path / BUNDLE} is damaged: {error}") from error

    def _numbers(self) -> list[int]:
        found = (_AUTHORITY.fullmatch(file.name) for file in self.path.glob("ca-*.crt"))
        return sorted(int(match[1]) for match in found if match is not None)

    def _permitted_names(self) -> tuple[str, ...]:
        """Return the constraints: what the operator permits, and what every certificate here has."""
        if not self._permitted:
            return ()
        mesh = broker_name(1, self.mesh_id).partition(".")[2]
        return (*self._permitted, mesh, "localhost", "127.0.0.0/8", "::1/128")

    def _write_authority(self, number: int, authority: Signed) -> None:
        # The key first: an authority is there when its certificate is.
        replace_file(self.path / f"ca-{number}.key", authority.key_pem, mode=PRIVATE)
        replace_file(self.path / f"ca-{number}.crt", authority.cert_pem, mode=PUBLIC)

    def _write_pair(self, name: str, signed: Signed) -> None:
        # A process that reads between the two finds a pair that does not fit, keeps its old one and looks again.
        replace_file(self.path / f"{name}.key", signed.key_pem, mode=PRIVATE)
        replace_file(self.path / f"{name}.crt", signed.cert_pem, mode=PUBLIC)


def replace_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file whole or not at all, with its mode from the first byte on. Raises ConfigError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; `georelay pki init` makes an authority") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
