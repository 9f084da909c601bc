"""The real control plane the other tests stand on: that it is real, closed to the unauthorized, and keeps its data."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from muster.controlplane.clusteraccess import KubectlError
from muster.controlplane.programs import ControlPlaneError, ControlPlaneUnavailableError, find_binaries
from tests.support.accessreviews import until_granted
from tests.support.controlplane import RealCluster, StartControlPlane


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}


def test_is_kubernetes_and_kubectl_speaks_to_it(real_control_plane: RealCluster) -> None:
    version = json.loads(real_control_plane.access.kubectl("version", "--output=json"))
    major, minor = version["serverVersion"]["major"], version["serverVersion"]["minor"].rstrip("+")
    assert (int(major), int(minor)) >= (1, 32)
    assert version["clientVersion"]["gitVersion"].startswith("v1.")
    real_control_plane.access.kubectl("get", "nodes")


def test_service_account_gets_what_it_has_a_rule_for_and_no_more(real_control_plane: RealCluster) -> None:
    access = real_control_plane.access
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    kubeconfig = access.service_account_kubeconfig("muster-test-rbac", "reader", [rule])
    who = json.loads(access.kubectl("auth", "whoami", "--output=json", kubeconfig=kubeconfig))
    assert who["status"]["userInfo"]["username"] == "system:serviceaccount:muster-test-rbac:reader"
    assert "system:masters" not in who["status"]["userInfo"]["groups"]
    until_granted(access, "system:serviceaccount:muster-test-rbac:reader", "list", "pods")
    access.kubectl("get", "pods", "--all-namespaces", kubeconfig=kubeconfig)
    with pytest.raises(KubectlError, match=r"(?i)forbidden"):
        access.kubectl("get", "nodes", kubeconfig=kubeconfig)
    with pytest.raises(KubectlError, match=r"(?i)forbidden"):
        access.kubectl("create", "configmap", "refused", "--namespace=default", kubeconfig=kubeconfig)
    assert kubeconfig.stat().st_mode & 0o077 == 0


def test_stopped_api_server_comes_back_on_its_address_with_its_data(start_control_plane: StartControlPlane) -> None:
    control_plane = start_control_plane(controller_manager=False)
    access = control_plane.access
    access.apply(config_map("kept", step="41"))
    control_plane.stop_apiserver(grace_s=0)
    with pytest.raises(KubectlError, match="refused"):
        access.kubectl("get", "configmap", "kept", timeout_s=30)
    control_plane.start_apiserver()
    assert access.kubectl("get", "configmap", "kept", "--output=jsonpath={.data.step}") == "41"


def test_settings_reach_the_api_server(start_control_plane: StartControlPlane) -> None:
    control_plane = start_control_plane(
        controller_manager=False,
        runtime_config={"resource.k8s.io/v1": False},
        extra_args={"kube-apiserver": ["--service-account-issuer=https://issuer.test"]},
    )
    groups = control_plane.access.kubectl("api-versions").splitlines()
    assert "resource.k8s.io/v1" not in groups
    assert "admissionregistration.k8s.io/v1" in groups
    discovery = control_plane.access.kubectl("get", "--raw=/.well-known/openid-configuration")
    assert json.loads(discovery)["issuer"] == "https://kubernetes.default.svc"  # the first one given issues


def test_without_credentials_nothing_is_listed(start_control_plane: StartControlPlane) -> None:
    control_plane = start_control_plane(controller_manager=False)
    tls = ssl.create_default_context(cafile=control_plane.ca_path)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{control_plane.url}/api/v1/namespaces", context=tls, timeout=10)
    refused.value.close()
    assert refused.value.code == 403


def test_component_that_dies_at_start_is_named_with_its_log(start_control_plane: StartControlPlane) -> None:
    with pytest.raises(ControlPlaneError, match=r"(?s)kube-apiserver exited with 1:.*--no-such-flag"):
        start_control_plane(extra_args={"kube-apiserver": ["--no-such-flag"]})


def test_nothing_survives_a_test_run_that_is_killed(control_plane_binaries: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from muster.controlplane.programs import ControlPlane\n"
        "with ControlPlane(Path(sys.argv[1]), directory=Path(sys.argv[2]), controller_manager=False):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program, control_plane_binaries, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        assert len(processes_of(tmp_path)) == 2
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    deadline = time.monotonic() + 10
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


def test_no_binaries_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(tmp_path))
    with pytest.raises(ControlPlaneUnavailableError, match="make controlplane"):
        find_binaries(build=False)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ControlPlaneUnavailableError, match="lacks etcd, kube-apiserver, kubectl"):
        find_binaries()


@pytest.mark.parametrize(("required", "exit_code", "outcome"), [("1", 1, "1 error"), ("0", 0, "1 skipped")])
def test_run_without_a_control_plane_says_so(required: str, exit_code: int, outcome: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MUSTER_REQUIRE_REAL": required}
    which = "tests/system/test_controlplane.py::test_is_kubernetes_and_kubectl_speaks_to_it"
    if shutil.which("go", path=environment["PATH"]):
        pytest.skip("go is in a system folder: there is no PATH without it")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", which],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == exit_code, run.stdout + run.stderr
    assert outcome in run.stdout
    last_of_summary = run.stdout.strip().splitlines()[-2]
    assert last_of_summary.startswith("real control plane: NOT used: no controlplane is built: install Go 1.26 and run")


def processes_of(directory: Path) -> list[int]:
    """The running control plane processes whose data lies in `directory`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or [""]
        if command[0].endswith(("etcd", "kube-apiserver")) and str(directory) in " ".join(command):
            found.append(process.pid)
    return found
