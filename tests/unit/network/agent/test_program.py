"""The program `muster network agent` without an API server: it works, it answers, and it has only the needed rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from muster.cli.errors import CliError
from muster.cli.network.agent import command as command_of_agent
from muster.controlplane.ports import free_port
from muster.kube.privilege import CAPABILITIES, mask
from muster.network.agent.parts import PARTS, capabilities
from muster.network.config import NetworkConfig, parse_config
from muster.network.localpods.pod import LocalPod
from muster.network.localpods.saved import load_pods, save_pods
from tests.support.waiting import eventually

POD = LocalPod(namespace="ns", name="p", uid="u", job="train", addresses=("10.0.0.1",), phase="Running")
CACHE_OF_ANOTHER_USER = "traffic: {enabled: true, dataCache: {socket: /s}}"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """One whose API server is away."""
    cluster = {"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    made = tmp_path / "kubeconfig"
    made.write_text(yaml.safe_dump(config))
    made.chmod(0o600)
    return made


def command(kubeconfig: Path, *arguments: str) -> list[str]:
    folder = kubeconfig.parent
    flags = (f"--kubeconfig={kubeconfig}", f"--state-dir={folder}/state", f"--run-dir={folder}/run")
    return [sys.executable, "-m", "muster.cli.main", "network", "agent", *flags, *arguments]


@pytest.fixture
def agent(kubeconfig: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """An agent without parts, that had a pod in its last run."""
    (kubeconfig.parent / "state").mkdir()
    save_pods(kubeconfig.parent / "state/pods.json", [POD])
    port = free_port()
    listen = ("--node=n1", f"--listen=127.0.0.1:{port}")
    process = subprocess.Popen(command(kubeconfig, *listen), stderr=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait(30)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


@pytest.mark.slow
def test_agent_is_alive_and_knows_its_last_pods_while_the_api_server_is_away(
    agent: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, port = agent
    eventually("it serves", lambda: get(port, "/healthz")[0] == 200)
    _, metrics = get(port, "/metrics")
    assert "muster_network_pods 1.0" in metrics
    assert "muster_network_api_contact_age_seconds -1.0" in metrics
    assert 'muster_progress_age_seconds{loop="pods"}' in metrics
    status, text = get(port, "/v1/traffic")
    assert (status, text) == (404, "pages of this agent: none: every part is off\n")
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
def test_agent_without_parts_keeps_no_capability(agent: tuple[subprocess.Popen[bytes], int]) -> None:
    process, port = agent
    eventually("it serves", lambda: get(port, "/healthz")[0] == 200)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "config", "code", "message"),
    [
        (("--node=n1",), "traffic: {enabled: ja}", 2, "traffic.enabled: Expected `bool`, got `str`"),
        (("--node=n1",), "trafic: {}", 2, "trafic: unknown field; did you mean traffic?"),
        (("--node=n1",), "traffic: {internal: [10.0.0.1/8]}", 2, "has host bits set; write it as 10.0.0.0/8"),
        ((), "", 2, "set --node or NODE_NAME to its name"),
    ],
)
def test_bad_input_names_what_to_change(
    kubeconfig: Path, arguments: tuple[str, ...], config: str, code: int, message: str
) -> None:
    file = kubeconfig.parent / "network.yaml"
    file.write_text(config)
    environment = {name: value for name, value in os.environ.items() if name != "NODE_NAME"}
    done = subprocess.run(
        command(kubeconfig, f"--config={file}", *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr


REFUSED = (
    "uplink: {enabled: true}",
    "uplink: {enabled: true, budget: {in: 2G, out: 1K}}",
    "shaping: {enabled: true}",
    "tuning: {enabled: true, neighbours: {ipv4: [3, 2, 1]}}",
    "tuning: {enabled: true, neighbours: {ipv4: [1]}}",
    "pods: {enabled: true, addresses: {provider: azure, families: [IPv4, IPv6]}}",
    "pods: {enabled: true, addresses: {targets: {minimum: 9, maximum: 3}}}",
    "traffic: {enabled: true, classes: {x: [300.0.0.0/8]}}",
    "trafic: {}",
)


@pytest.mark.parametrize("text", REFUSED)
def test_check_refuses_what_the_agent_refuses_also_in_values_of_the_chart(tmp_path: Path, text: str) -> None:
    file, values = tmp_path / "network.yaml", tmp_path / "values.yaml"
    file.write_text(text)
    values.write_text(f"network:\n  enabled: true\n  config:\n    {text}\n")
    _, by_agent = refusal(f"--config={file}", "--node=n1")
    assert f"{file}:1:" in by_agent
    assert refusal(f"--config={file}", "--check") == (2, by_agent)
    code, by_check = refusal(f"--config={values}", "--check")
    assert code == 2
    assert f"{values}:4:" in by_check
    said = [[line.split(": ", 1)[1] for line in text.splitlines()] for text in (by_check, by_agent)]
    assert said[0] == said[1]


def refusal(*arguments: str) -> tuple[int, str]:
    """The exit code and the message with which the command ends before it looks for a cluster."""
    result = CliRunner().invoke(command_of_agent, arguments)
    assert isinstance(result.exception, CliError), result.output
    return result.exception.exit_code, result.exception.message


def test_check_names_the_parts_and_asks_for_a_file(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    for text, parts in (
        ("traffic: {enabled: true}\nchecks: {enabled: true}", "traffic, checks"),
        ("network: {config: {tuning: {enabled: true, neighbours: {ipv4: [1, 2, 3]}}}}", "tuning"),
        ("network: {enabled: true}", "none"),
        ("", "none"),
    ):
        file.write_text(text)
        result = CliRunner().invoke(command_of_agent, [f"--config={file}", "--check"])
        assert result.output == f"{file}: the network agent accepts it; parts that are on: {parts}\n"
    assert refusal("--check")[0] == 2
    assert refusal(f"--config={tmp_path}/none", "--check")[0] == 2
    assert refusal(f"--config={tmp_path}/none", "--node=n1") == (
        2,
        f"--config: {tmp_path}/none cannot be read: No such file or directory",
    )


def test_every_part_is_off_by_default_and_has_a_section_and_known_capabilities() -> None:
    assert capabilities(NetworkConfig()) == frozenset()
    for part in PARTS:
        text = json.dumps({part.section: {"enabled": True}})
        section = getattr(parse_config_unchecked(text), part.section)
        assert part.capabilities(section) <= CAPABILITIES.keys()
    assert capabilities(parse_config(CACHE_OF_ANOTHER_USER)) == {"NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"}
    assert capabilities(parse_config("traffic: {enabled: true, backend: nftables}")) == {"NET_ADMIN"}
    assert capabilities(parse_config("traffic: {enabled: true, backend: ebpf}")) == {"NET_ADMIN", "BPF"}
    assert mask(("NET_ADMIN", "NET_ADMIN", "CHOWN")) == 1 << 12 | 1


def parse_config_unchecked(text: str) -> NetworkConfig:
    """Sections that need another one are checked together; here each is alone."""
    import msgspec

    return msgspec.json.decode(text, type=NetworkConfig)


def test_saved_pods_that_are_not_readable_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    assert load_pods(path) == {}
    save_pods(path, [POD])
    assert load_pods(path) == {"u": POD}
    for content in (b'{"pods": [{"namespace"', b'{"pods": [{"namespace": "\xff"}]}', b"", b'{"pods": 5}'):
        path.write_bytes(content)
        assert load_pods(path) == {}


ENTER = """
import os, sys
from pathlib import Path
from muster.kube.privilege import drop_privileges
from muster.network.agent.cgroupnamespace import enter_host_cgroups
enter_host_cgroups(Path(sys.argv[1]))
drop_privileges(("NET_ADMIN",))
print(os.readlink("/proc/self/ns/cgroup"))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its control group namespace")
def test_container_enters_the_control_group_namespace_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/cgroup").symlink_to(f"/proc/{os.getpid()}/ns/cgroup")
    inside = ["unshare", "--cgroup", sys.executable, "-c", ENTER]
    done = subprocess.run([*inside, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == os.readlink("/proc/self/ns/cgroup"), done.stderr
    missing = subprocess.run([*inside, str(tmp_path / "none")], capture_output=True, text=True, timeout=60, check=False)
    assert "FileNotFoundError" in missing.stderr
