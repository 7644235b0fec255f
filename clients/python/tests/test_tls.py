"""Certificates of coordinators and workers, and keys over TLS."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster import BINARY, ROOT, Cluster
from volley_client import TLS, Client, ConnectionLostError, Retry, errors


class Authority:
    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of the tests")])
        extension = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self.name, self.key).add_extension(extension, True)
        self.certificate = certificate.sign(self.key, hashes.SHA256())
        self.file = folder / "authority.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def issue(self, identity):
        """The files of a certificate for a node on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity)])
        names = x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(f"volley://{identity}"),
                x509.DNSName("localhost"),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            ]
        )
        usage = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        certificate = self._builder(subject, key).add_extension(names, False)
        certificate = certificate.add_extension(usage, False).sign(self.key, hashes.SHA256())
        name = identity.replace("/", "-")
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        files[1].chmod(0o600)
        return files


class TlsCluster(Cluster):
    """A coordinator and a worker with certificates, and a first key."""

    def __init__(self, folder):
        self.authority = Authority(folder)
        coordinator = self.authority.issue("coordinator/1")
        worker = self.authority.issue("worker/worker-1")
        made = subprocess.run([BINARY, "key", "bootstrap"], capture_output=True, check=True)
        self.key = made.stdout.decode().strip()
        key_file = folder / "bootstrap.key"
        key_file.write_text(self.key)
        key_file.chmod(0o600)

        def nodes(files):
            return (
                f'[security.nodes]\ncertificate = "{files[0]}"\nkey = "{files[1]}"\n'
                f'authority = "{self.authority.file}"\n'
            )

        edge = f'[security.tls]\ncertificate = "{coordinator[0]}"\nkey = "{coordinator[1]}"\n'
        first = f'[security]\nbootstrap_key_file = "{key_file}"\n'
        super().__init__(folder, 1, 1, first + edge + nodes(coordinator), nodes(worker))

    @property
    def rest(self):
        return [f"https://{address}" for address in self.public]

    @property
    def flight(self):
        return [f"grpc+tls://{address}" for address in self.internal]

    def client(self, urls=None, **options):
        options.setdefault("api_key", self.key)
        options.setdefault("tls", TLS(ca_file=self.authority.file))
        return Client(urls or self.urls, **options)

    def _is_ready(self):
        for node in self.coordinators + self.workers:
            node.check()
        try:
            with self.client(retry=Retry(attempts=1)) as client:
                status = client.cluster.status()
        except errors.VolleyError:
            return False
        return status["node"]["leader"] and [it["liveness"] for it in status["workers"]] == [
            "alive"
        ]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    with TlsCluster(tmp_path_factory.mktemp("tls")) as cluster:
        cluster.deploy_encoder("text-embed")
        cluster.deploy("storyteller", function_name="onnx", path=str(ROOT / "models/storyteller"))
        yield cluster


def test_both_transports_work_over_tls(secure, transport):
    with secure.client() as client:
        assert len(client.embed("text-embed", ["x"] * 2_000, transport=transport)) == 2_000
        parameters = {"max_tokens": 3}
        assert client.generate("storyteller", "x", parameters=parameters, transport=transport).text


def test_an_unknown_authority_is_rejected(secure, transport):
    urls = secure.flight if transport == "flight" else secure.rest
    with secure.client(urls, tls=None, retry=Retry(attempts=1)) as client:
        with pytest.raises(ConnectionLostError):
            client.embed("text-embed", ["x"])


def test_a_key_is_needed_over_tls_too(secure, transport):
    with secure.client(api_key=None) as client:
        with pytest.raises(errors.UnauthenticatedError):
            client.embed("text-embed", ["x"], transport=transport)


def test_half_of_a_certificate_is_rejected():
    with pytest.raises(ValueError, match="'cert_file' and 'key_file'"):
        TLS(cert_file="x.pem")
