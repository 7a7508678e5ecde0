"""Certificates of one authority, for encrypted connections on this machine."""

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

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Signs certificates, and keeps them in a folder."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        """A new one."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("lab")
        builder = _begun(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = cls(folder, key, builder.sign(key, hashes.SHA256()))
        (folder / "ca.pem").write_bytes(made.certificate.public_bytes(serialization.Encoding.PEM))
        return made

    def options(self, name: str) -> list[str]:
        """The three options of one who has a certificate, which is made."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _begun(_named(name), self.certificate.subject, key).sign(self.key, hashes.SHA256())
        (self.folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (self.folder / f"{name}-key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        files = {"ca-file": "ca.pem", "cert": f"{name}.pem", "key": f"{name}-key.pem"}
        return [word for option, file in files.items() for word in (f"--tls-{option}", str(self.folder / file))]


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
