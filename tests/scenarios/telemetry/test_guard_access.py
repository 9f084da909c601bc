"""Issue 17 A3: callers of a running guard in front of a real Prometheus: TLS, tokens, Grafana's users, reload, log.

The tests go on from each other in one process.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.connection.servingcertificates import load_pair
from tests.support import guardprocess, prometheus
from tests.support.clientcertificates import certificate, named
from tests.support.guardprocess import Guard
from tests.support.telemetrycommand import telemetry
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOKENS = {name: f"{name}-has-a-random-token-of-its-own" for name in ("grafana", "ruler", "operator")}
CONFIG = """
upstream: {{url: "{url}"}}
tls: {{certificateFile: {folder}/tls.crt, keyFile: {folder}/tls.key}}
groups:
  people: {{}}
  operators: {{}}
callers:
  tokens:
{tokens}
  certificates:
    caFile: {folder}/clients.crt
    callers: [{{name: mimir, uri: "spiffe://here/mimir"}}]
  peers: [{{name: grafana, caller: grafana, group: people}}]
dearest: {{readers: [operator]}}
"""


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def bearer(name: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}", **{key.replace("_", "-"): value for key, value in more.items()}}


@dataclass
class World:
    """A guard, its files, and clients.

    Attributes:
        guard: the process.
        folder: its files.
        config: the text of its configuration.
        clients: the authority of client certificates.
    """

    guard: Guard
    folder: Path
    config: str
    clients: CertificateAuthority

    def context(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "server-ca.crt"))
        if pair is not None:
            load_pair(context, pair)
        return context

    def query(self, headers: dict[str, str], expression: str = "vector(1)", pair: KeyPair | None = None) -> Any:
        status, body = self.guard.query(expression, headers, self.context(pair))
        return status if status == 200 else (status, body["error"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("guard")
    server, clients = CertificateAuthority.create("server"), CertificateAuthority.create("clients")
    pair = server.issue_server("guard", ["127.0.0.1"])
    (folder / "server-ca.crt").write_bytes(server.certificate)
    (folder / "clients.crt").write_bytes(clients.certificate)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    tokens = "\n".join(f"  - {{name: {name}, sha256: {sha256(token)}}}" for name, token in TOKENS.items())
    with prometheus.running(folder / "prometheus") as upstream:
        text = CONFIG.format(url=upstream.url, folder=folder, tokens=tokens)
        (folder / "guard.yaml").write_text(text)
        with guardprocess.running(folder / "guard.yaml", folder / "guard.log", tls=True) as guard:
            yield World(guard, folder, text, clients)


def mimir(authority: CertificateAuthority) -> KeyPair:
    names = [x509.UniformResourceIdentifier("spiffe://here/mimir")]
    return certificate(authority, named("mimir"), alternative_names=names)


def test_tokens_and_certificates_identify_callers(world: World) -> None:
    assert world.query(bearer("ruler")) == 200
    assert world.query({}, pair=mimir(world.clients)) == 200
    assert world.query({})[0] == 401
    assert world.query({"Authorization": "Bearer ruler"})[0] == 401
    with pytest.raises((ssl.SSLError, ConnectionError)):
        world.query({}, pair=mimir(CertificateAuthority.create("strangers")))


def test_grafana_alone_names_its_users(world: World) -> None:
    assert (
        world.query(bearer("grafana", X_Grafana_User="alice", X_Dashboard_Uid="uid-1", X_Panel_Id="7"), "1 + 1") == 200
    )
    status, error = world.query(bearer("ruler", X_Grafana_User="alice"))
    assert (status, "callers.peers" in error) == (403, True)
    status, _ = world.query({"X-Grafana-User": "alice", "X-Forwarded-For": "127.0.0.1"}, pair=mimir(world.clients))
    assert status == 403


def test_command_shows_the_dearest_queries_with_their_panels(world: World) -> None:
    def shown(name: str, *arguments: str) -> str:
        (world.folder / "token").write_text(TOKENS[name])
        done = telemetry(
            "dearest",
            f"--prometheus={world.guard.url}",
            f"--token-file={world.folder / 'token'}",
            f"--ca-file={world.folder / 'server-ca.crt'}",
            *arguments,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    everything = json.loads(shown("operator", "-o", "json"))
    assert everything["of"] == "all"
    [query] = [each for each in everything["queries"] if each["caller"] == "grafana/alice"]
    assert (query["query"], query["dashboardUid"], query["panelId"]) == ("1 + 1", "uid-1", "7")
    assert {each["caller"] for each in everything["queries"]} >= {"grafana/alice", "ruler", "mimir"}
    own = json.loads(shown("ruler", "-o", "json"))
    assert {each["caller"] for each in own["queries"]} == {"ruler"}
    assert "uid-1 / panel 7" in shown("operator")


def test_other_server_is_not_taken_for_a_guard(world: World) -> None:
    upstream = world.config.partition('url: "')[2].partition('"')[0]
    done = telemetry("dearest", f"--prometheus={upstream}")
    assert done.returncode == 4
    assert "is not a guard" in done.stderr


def test_changed_file_takes_a_token_away_without_a_restart(world: World) -> None:
    path = world.folder / "guard.yaml"
    path.write_text(world.config + "dryRn: true\n")
    eventually("the bad file is seen", lambda: "muster_guard_config_problem 1.0" in world.guard.metrics())
    assert world.query(bearer("ruler")) == 200
    path.write_text(world.config.replace(sha256(TOKENS["ruler"]), sha256("another")))
    eventually("the token is gone", lambda: world.query(bearer("ruler")) != 200)
    assert "muster_guard_config_problem 0.0" in world.guard.metrics()
    other = CertificateAuthority.create("clients")  # with another key
    comment = "# Autorité, in Latin-1\n".encode("latin-1")
    (world.folder / "clients.crt").write_bytes(comment + other.certificate)
    eventually("the new authority counts", lambda: _accepted(world, mimir(other)))
    assert not _accepted(world, mimir(world.clients))


def _accepted(world: World, pair: KeyPair) -> bool:
    try:
        return bool(world.query({}, pair=pair) == 200)
    except (ssl.SSLError, ConnectionError):
        return False


def test_users_do_not_become_series(world: World) -> None:
    for n in range(20):
        world.query(bearer("grafana", X_Grafana_User=f"user-{n}"))
    page = world.guard.metrics()
    assert "user-" not in page
    assert "uid-1" not in page
    assert 'caller="grafana/*"' in page
