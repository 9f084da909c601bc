"""The authorities of callers change while the guard runs, and cannot be used at first."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.connection.pki import CertificateAuthority
from muster.telemetry.guard.configfile import ConfigFile
from muster.telemetry.guard.program import Guard
from muster.telemetry.guard.serving.settings import ServingSettings

CONFIG = """
upstream: {{url: "http://127.0.0.1:1"}}
tls: {{certificateFile: {folder}/tls.crt, keyFile: {folder}/tls.key}}
callers:
  certificates:
    caFile: {folder}/clients.crt
    callers: [{{name: mimir, commonName: mimir}}]
"""


async def test_new_authorities_wait_for_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard loads its certificate again with them, by files that the ssl module reads."""
    config, authorities = tmp_path / "guard.yaml", tmp_path / "clients.crt"
    config.write_text(CONFIG.format(folder=tmp_path))
    CertificateAuthority.create("server").issue_server("guard", ["127.0.0.1"]).write(
        tmp_path / "tls.crt", tmp_path / "tls.key"
    )
    authorities.write_bytes(CertificateAuthority.create("old").certificate)
    file = ConfigFile(config)
    guard = Guard(file.loaded, None, ServingSettings(), CollectorRegistry())
    authorities.write_bytes(CertificateAuthority.create("new").certificate)
    with monkeypatch.context() as full:
        full.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        file.check(guard.apply)
        assert "caFile cannot be used" in file.problem
        assert guard.callers.authorities.pem == file.loaded.authorities_pem
    file.check(guard.apply)
    assert (file.problem, file.reloads) == ("", 1)
