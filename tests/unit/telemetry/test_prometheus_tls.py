"""Servers with TLS: every command says what is wrong with a certificate, and how to trust it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.kube.connection.pki import CertificateAuthority
from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError
from tests.support.fakeprometheus import answering, serving, vector


def tls_of(authority: CertificateAuthority, folder: Path, host: str) -> ssl.SSLContext:
    authority.issue_server("prometheus", [host]).write(folder / "tls.crt", folder / "tls.key")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return tls


@pytest.mark.parametrize("command", ["dearest", "rules", "cardinality", "replay", "unused --dashboards ."])
async def test_untrusted_certificate_is_named_with_the_option_that_trusts_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text('{"expr": "up"}')
    async with serving(answering({}, {}), tls_of(CertificateAuthority.create(), tmp_path, "127.0.0.1")) as url:
        status = await asyncio.to_thread(run, ["telemetry", *command.split(), "--prometheus", url])
    error = " ".join(capsys.readouterr().err.split())
    assert status == 3
    assert f"the certificate of {url} is not trusted: unable to get local issuer certificate" in error
    assert "--ca-file" in error


async def test_authority_in_a_file_is_trusted_for_its_names_only(tmp_path: Path) -> None:
    authority = CertificateAuthority.create()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    for host, why in (("127.0.0.1", ""), ("prometheus.example", "IP address mismatch")):
        handler = answering({}, {"up": vector(({}, 1))})
        async with (
            serving(handler, tls_of(authority, tmp_path, host)) as url,
            PrometheusClient(url, ca_file=tmp_path / "ca.crt") as client,
        ):
            if not why:
                assert await client.value("up") == 1
                continue
            with pytest.raises(PrometheusError, match=why) as caught:
                await client.value("up")
            assert caught.value.reason == "untrusted"


async def test_server_without_tls_is_named() -> None:
    async with serving(answering({}, {})) as url, PrometheusClient(url.replace("http:", "https:")) as client:
        with pytest.raises(PrometheusError, match="does not speak TLS as expected") as caught:
            await client.value("up")
    assert caught.value.reason == "untrusted"
