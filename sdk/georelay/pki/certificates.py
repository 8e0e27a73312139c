"""X.509 certificates of one mesh: what they say, and for how long. No files here.

Rule 1: keys are ECDSA P-256; authorities sign end certificates only (path length 0).
Rule 2: a broker's certificate names the broker and its mesh (`georelay.tls.broker_name`); nothing else has such a name.
Rule 3: clients' certificates cannot be used by a server, brokers' and gateways' by both ends.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from georelay.errors import ConfigError

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 397
BACKDATED: Final = datetime.timedelta(minutes=5)  # clocks of one mesh may differ by so much
_ATTRIBUTES: Final = {
    NameOID.COMMON_NAME: "commonName",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
    NameOID.ORGANIZATION_NAME: "organizationName",
    NameOID.LOCALITY_NAME: "localityName",
    NameOID.STATE_OR_PROVINCE_NAME: "stateOrProvinceName",
    NameOID.COUNTRY_NAME: "countryName",
    NameOID.DOMAIN_COMPONENT: "domainComponent",
    NameOID.USER_ID: "userId",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"Signed({self.certificate.subject.rfc4514_string()})"

    @property
    def cert_pem(self) -> bytes:
        """Return the certificate in PEM form."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Return the key in PEM form (PKCS 8, no passphrase)."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an end certificate shall say.

    Args:
        common_name: of the subject.
        hosts: DNS names and addresses at which it may be reached.
        serves: whether a listener may show it.
    """

    common_name: str
    hosts: tuple[str, ...] = ()
    serves: bool = True
    days: int = CERTIFICATE_DAYS


def new_authority(
    *, mesh_id: str, number: int, now: datetime.datetime, days: int, permitted: Sequence[str] = ()
) -> Signed:
    """Return a self-signed authority.

    Args:
        number: part of its name, so that two authorities of one mesh are never taken for each other.
        permitted: DNS domains and networks ("10.0.0.0/8"); when given, it can sign for no other hosts.

    Raises:
        ConfigError: a domain or network that is none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "georelay"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{mesh_id[:40]} authority {number}"),
        ]
    )
    builder = (
        _builder(name, name, key.public_key(), now=now, days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if permitted:
        names = [_constraint(text) for text in permitted]
        builder = builder.add_extension(
            x509.NameConstraints(permitted_subtrees=names, excluded_subtrees=None), critical=True
        )
    return Signed(certificate=builder.sign(key, hashes.SHA256()), key=key)


def issue(authority: Signed, wanted: Wanted, *, now: datetime.datetime) -> Signed:
    """Return an end certificate. Raises ConfigError."""
    if now + datetime.timedelta(days=wanted.days) > authority.certificate.not_valid_after_utc:
        raise ConfigError(
            f"--days {wanted.days}: the authority itself ends on {authority.certificate.not_valid_after_utc:%Y-%m-%d}; "
            "take fewer days, or `georelay pki rotate`"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _checked_name(wanted.common_name))])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if wanted.serves:
        purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(subject, authority.certificate.subject, key.public_key(), now=now, days=wanted.days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if wanted.hosts:
        names = [_host(host) for host in dict.fromkeys(wanted.hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Signed(certificate=builder.sign(authority.key, hashes.SHA256()), key=key)


def read_signed(cert_pem: bytes, key_pem: bytes) -> Signed:
    """Return what was written. Raises ValueError when they do not belong together or are no ECDSA pair."""
    certificate = x509.load_pem_x509_certificate(cert_pem)
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an ECDSA key")  # noqa: TRY004  a file, not a type, is wrong
    if key.public_key() != certificate.public_key():
        raise ValueError("certificate and key do not belong together")
    return Signed(certificate=certificate, key=key)


def earliest_end_s(pem: bytes) -> float:
    """Return when the first of the certificates ends, in seconds since 1970. Raises ValueError."""
    return min(row.not_valid_after_utc.timestamp() for row in x509.load_pem_x509_certificates(pem))


def subject_of(pem: bytes) -> list[list[tuple[str, str]]]:
    """Return the subject in the form that the standard library's `getpeercert` has. Raises ValueError."""
    subject = x509.load_pem_x509_certificate(pem).subject
    return [
        [(_ATTRIBUTES.get(row.oid, row.oid.dotted_string), str(row.value)) for row in group] for group in subject.rdns
    ]


def host_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    )


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether that authority's key signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, x509.InvalidVersion):
        return False
    except Exception as error:
        if type(error).__name__ == "InvalidSignature":
            return False
        raise
    return True


def serves(certificate: x509.Certificate) -> bool:
    """Return whether a listener may show it."""
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.SERVER_AUTH in purposes


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name, "" without one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= 64 or not name.isprintable() or name != name.strip():  # RFC 5280: ub-common-name
        raise ConfigError(f"{name[:64]!r} is no name for a certificate: 1 to 64 printable characters")
    return name


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(_dns(host))


def _constraint(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_network(text))
    except ValueError:
        return x509.DNSName(_dns(text))


def _dns(name: str) -> str:
    labels = name.split(".")
    if (
        not name.isascii()
        or len(name) > 253
        or not all(0 < len(label) <= 63 and label.replace("-", "a").replace("*", "a").isalnum() for label in labels)
    ):
        raise ConfigError(f"{name[:253]!r} is neither an address nor a DNS name")
    return name
