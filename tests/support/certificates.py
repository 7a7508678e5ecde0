"""Certificates of one authority, for TLS connections on this machine."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority"]

_ONE_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority that keeps its certificates in a directory."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        """Create a new authority in a directory."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _make_name("lab")
        builder = _start_certificate(subject, subject, key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        authority = cls(folder, key, builder.sign(key, hashes.SHA256()))
        (folder / "ca.pem").write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    def make_options(self, name: str) -> list[str]:
        """Make a certificate for a name; return the three `--tls-…` options that use it."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _start_certificate(_make_name(name), self.certificate.subject, key).sign(
            self.key, hashes.SHA256()
        )
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encoding = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (self.folder / f"{name}-key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *encoding))
        files = {"ca-file": "ca.pem", "cert": f"{name}.pem", "key": f"{name}-key.pem"}
        return [argument for option, file in files.items() for argument in (f"--tls-{option}", str(self.folder / file))]


def _make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    issue_time = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issue_time - _ONE_DAY)
        .not_valid_after(issue_time + _ONE_DAY)
    )
