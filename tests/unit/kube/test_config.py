from __future__ import annotations

import asyncio
import base64
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.connection.credentials import ExecPlugin, ExecPluginSpec
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import ConfigError
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.core import ConfigMap
from tests.support.waiting import until
from tests.unit.kube.fakeapi import FakeApi, status

Write = Callable[..., Path]
HALF = "{current-context: a, contexts: [{name: a, context: {cluster: c}}], "


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MUSTER_SERVICE_ACCOUNT_DIR", str(tmp_path / "none"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(
        user: dict[str, Any] | None = None,
        *,
        cluster: dict[str, Any] | None = None,
        name: str = "config",
        context: str = "here",
        current: str | None = None,
        **context_fields: Any,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context if current is None else current,
            "clusters": [{"name": f"{context}-cluster", "cluster": cluster or {"server": "http://127.0.0.1:8001/"}}],
            "contexts": [
                {
                    "name": context,
                    "context": {"cluster": f"{context}-cluster", "user": f"{context}-user", **context_fields},
                }
            ],
            "users": [{"name": f"{context}-user", "user": user or {}}],
        }
        path.write_text(yaml.safe_dump(data))
        return path

    return write


async def header(config: ClusterConfig) -> str:
    return await config.credentials.authorization()


async def test_a_kubeconfig_with_a_token(write: Write) -> None:
    config = load_config(write({"token": "t0ken"}, namespace="team"))
    assert (config.server, config.namespace, config.context) == ("http://127.0.0.1:8001", "team", "here")
    assert await header(config) == "Bearer t0ken"
    assert "t0ken" not in repr(config)


async def test_where_it_is_looked_for(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cluster found: set KUBECONFIG"):
        load_config()
    folder = tmp_path / "account"
    folder.mkdir()
    for name, text in (("token", "pod\n"), ("namespace", "pods"), ("ca.crt", "")):
        (folder / name).write_text(text)
    monkeypatch.setenv("MUSTER_SERVICE_ACCOUNT_DIR", str(folder))
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST"):
        load_config()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    pod = load_config()
    assert (pod.server, pod.namespace, await header(pod)) == ("https://[fd00::1]:6443", "pods", "Bearer pod")
    write({"token": "home"}, name="home/.kube/config", context="home")
    assert load_config().context == "home"
    variable = write({"token": "variable"}, name="variable", context="variable")
    monkeypatch.setenv("KUBECONFIG", str(variable))
    assert load_config().context == "variable"
    assert load_config(write(name="explicit", context="explicit")).context == "explicit"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="names no file that exists"):
        load_config()


async def test_several_files_are_merged_and_paths_are_relative_to_their_own(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = write({"token": "1"}, name="one/config", context="one")
    second = write({"tokenFile": "secret/token"}, name="two/config", context="two")
    (tmp_path / "two" / "secret").mkdir()
    (tmp_path / "two" / "secret" / "token").write_text("from file\n")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'absent'}:{second}")
    assert load_config().context == "one"
    assert await header(load_config(context="two")) == "Bearer from file"
    with pytest.raises(ConfigError, match=r"context 'three' is not in .*; it has one, two"):
        load_config(context="three")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("]", "is not YAML"),
        ("- 1", "is not a mapping"),
        ("{}", "no current-context; choose one of no contexts"),
        ("clusters: [{name: a, cluster: 5}]", "an entry of 'clusters' is not a mapping"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: gone}}]}",
            "refers to 'gone', which the file does not have",
        ),
        (
            HALF + "clusters: [{name: c, cluster: {server: 5}}]}",
            "not a valid kubeconfig",
        ),
        (
            HALF + "clusters: [{name: c, cluster: {server: x}}]}",
            "must start with https://",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c}], "
            "users: [{name: u, user: {exec: {command: x}}}]}",
            "not a valid kubeconfig: user 'u': .*apiVersion",
        ),
    ],
)
def test_a_bad_kubeconfig_says_what_to_change(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(path)


def test_a_missing_or_broken_secret_is_named_but_never_quoted(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"client certificate .*gone\.pem cannot be read"):
        load_config(write({"client-certificate": "gone.pem"}))
    with pytest.raises(ConfigError, match="needs both a client certificate and a key"):
        load_config(write({"client-key-data": base64.b64encode(b"hunter2").decode()}))
    with pytest.raises(ConfigError, match="not base64") as raised:
        load_config(write({"client-key-data": "hunter2!"}))
    assert "hunter2" not in str(raised.value)
    (tmp_path / "leaky").write_text("token: hunter2\n  bad: [")
    with pytest.raises(ConfigError) as raised:
        load_config(tmp_path / "leaky")
    assert "hunter2" not in str(raised.value)


def test_client_certificates_from_data_and_files_make_a_tls_context(write: Write, tmp_path: Path) -> None:
    authority = CertificateAuthority.create()
    user = authority.issue_client("me")
    user.write(tmp_path / "me.crt", tmp_path / "me.key")
    ca_data = base64.b64encode(authority.certificate).decode()
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": ca_data, "tls-server-name": "api"}
    config = load_config(write({"client-certificate": "me.crt", "client-key": "me.key"}, cluster=cluster))
    assert (config.client_certificate, config.client_key) == (user.certificate, user.key)
    context = config.ssl_context()
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert config.tls_server_name == "api"
    assert user.key.decode()[40:60] not in repr(config)
    broken = ClusterConfig("https://x", ca_data=b"nonsense")
    with pytest.raises(ConfigError, match="cannot be used"):
        broken.ssl_context()


PLUGIN = """#!{python}
import json, os, sys
count = {folder!r} + "/count"
runs = int(open(count).read()) + 1 if os.path.exists(count) else 1
open(count, "w").write(str(runs))
open({folder!r} + "/info", "w").write(os.environ["KUBERNETES_EXEC_INFO"])
status = {{"token": "token-%d-%s-%s" % (runs, os.environ.get("COLOUR", ""), "".join(sys.argv[1:]))}}
expiry = os.environ.get("EXPIRY")
if expiry:
    status["expirationTimestamp"] = expiry
print(json.dumps({{"apiVersion": json.loads(os.environ["KUBERNETES_EXEC_INFO"])["apiVersion"],
                  "kind": "ExecCredential", "status": status}}))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    folder = tmp_path / "plugin"
    folder.mkdir()
    path = folder / "get-token"
    path.write_text(PLUGIN.format(python=sys.executable, folder=str(folder)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def runs(plugin: Path) -> int:
    return int((plugin.parent / "count").read_text())


def exec_user(command: object, **fields: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(command), **fields}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_credential_plugin_runs_once_and_gets_the_cluster(write: Write, plugin: Path, version: str) -> None:
    user = exec_user(
        "plugin/get-token",  # relative to the kubeconfig
        args=["a", "b"],
        env=[{"name": "COLOUR", "value": "red"}],
        provideClusterInfo=True,
    )
    user["exec"]["apiVersion"] = f"client.authentication.k8s.io/{version}"
    cluster = {
        "server": "https://127.0.0.1:6443",
        "insecure-skip-tls-verify": True,
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
    }
    config = load_config(write(user, cluster=cluster))
    assert await header(config) == await header(config) == "Bearer token-1-red-ab"
    info = json.loads((plugin.parent / "info").read_text())
    assert info["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert info["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://127.0.0.1:6443",
            "insecure-skip-tls-verify": True,
            "config": {"audience": "x"},
        },
    }
    assert "token-1" not in repr(config)


@pytest.mark.slow
async def test_a_plugin_runs_again_when_its_token_expires_or_is_rejected(
    write: Write, plugin: Path, api: FakeApi, metrics: KubeMetrics
) -> None:
    past = exec_user(plugin, env=[{"name": "EXPIRY", "value": "2020-01-01T00:00:00Z"}])
    config = load_config(write(past))
    assert [await header(config) for _ in range(2)] == ["Bearer token-1--", "Bearer token-2--"]
    future = exec_user(plugin, env=[{"name": "EXPIRY", "value": "2999-01-01T00:00:00Z"}])
    config = load_config(write(future, cluster={"server": api.url}))
    good = ["Bearer token-3--"]

    def check(request: web.Request) -> web.Response | None:
        known = request.headers["Authorization"] == good[0]
        return None if known else web.json_response(status(401, "Unauthorized"), status=401)

    api.before.append(check)
    api.put("a")
    async with Client(config, metrics=metrics) as client:
        await client.get(ConfigMap, "a")
        await client.get(ConfigMap, "a")
        assert runs(plugin) == 3
        good[0] = "Bearer token-4--"
        await client.get(ConfigMap, "a")
        assert runs(plugin) == 4


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo nonsense", "did not print an ExecCredential"),
        ("echo '{}'", "not client.authentication.k8s.io/v1 ExecCredential"),
        (
            """echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{}}'""",
            "neither a token nor a client certificate",
        ),
        ("echo 'log in first' >&2; exit 3", "exit code 3: log in first"),
    ],
)
async def test_a_plugin_that_fails_is_explained(write: Write, tmp_path: Path, body: str, says: str) -> None:
    script = tmp_path / "plugin.sh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=says):
        await header(load_config(write(exec_user(script))))


async def test_a_missing_plugin_comes_with_its_install_hint(write: Write) -> None:
    config = load_config(write(exec_user("no-such-plugin-here", installHint="get it at example.dev")))
    with pytest.raises(ConfigError, match=r"cannot be run: No such file or directory\nget it at example.dev"):
        await header(config)


async def test_a_plugin_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "hang.sh"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/child\nwait\n")
    script.chmod(0o755)
    spec = ExecPluginSpec(api_version="client.authentication.k8s.io/v1", command=str(script))
    asking = asyncio.create_task(ExecPlugin(spec, timeout_s=600).authorization())
    await until("the plugin has a child", (tmp_path / "child").exists)
    loop = asyncio.get_running_loop()
    time, began_s = loop.time, loop.time()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: began_s + 10_000 * (time() - began_s))
        await until("the plugin is given up", asking.done)
    with pytest.raises(ConfigError, match="did not answer within"):
        await asking
    child = int((tmp_path / "child").read_text())
    await until("the plugin's child is dead", lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_a_plugin_for_people_or_from_the_past_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="needs a terminal"):
        await header(load_config(write(exec_user("x", interactiveMode="Always"))))
    old = exec_user("x")
    old["exec"]["apiVersion"] = "client.authentication.k8s.io/v1alpha1"
    with pytest.raises(ConfigError, match="update it to one of"):
        await header(load_config(write(old)))
