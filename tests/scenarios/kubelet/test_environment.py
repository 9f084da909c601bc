"""What a container sees: environment, downward API, volumes and translated paths."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from muster.kube.objects.core import ConfigMap
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NAMESPACE, NodeUnderTest, exists, processes
from tests.support.anyserver import BY_KUBELET
from tests.support.waiting import until


def field(path: str) -> dict[str, object]:
    return {"fieldRef": {"fieldPath": path}}


async def variables(node: NodeUnderTest, pod: Pod) -> dict[str, str]:
    found: dict[str, str] = json.loads(node.logs(await node.finished(pod)))
    return found


DUMP = (sys.executable, "-c", "import os,json; print(json.dumps(dict(os.environ)))")


@BY_KUBELET
async def test_declared_variables_and_the_downward_api(node: NodeUnderTest) -> None:
    config = await node.config_map({"colour": "blue"})
    mebibytes = {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}
    missing = {"configMapKeyRef": {"name": config, "key": "x", "optional": True}}
    pod = await node.create(
        {
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": list(DUMP),
                    "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "1500m", "memory": "1Gi"}},
                    "envFrom": [
                        {"configMapRef": {"name": config}, "prefix": "C_"},
                        {"secretRef": {"name": "no-such", "optional": True}},
                    ],
                    "env": [
                        {"name": "NAME", "valueFrom": field("metadata.name")},
                        {"name": "UID", "valueFrom": field("metadata.uid")},
                        {"name": "TEAM", "valueFrom": field("metadata.labels['team']")},
                        {"name": "NOTE", "valueFrom": field("metadata.annotations['note']")},
                        {"name": "NODE", "valueFrom": field("spec.nodeName")},
                        {"name": "HOST", "valueFrom": field("status.hostIP")},
                        {"name": "IP", "valueFrom": field("status.podIP")},
                        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                        {"name": "MIB", "valueFrom": mebibytes},
                        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": config, "key": "colour"}}},
                        {"name": "NONE", "valueFrom": missing},
                        {"name": "BOTH", "value": "$(NAME)-$(COLOUR) $$(NAME) $(LATER)"},
                        {"name": "LATER", "value": "x"},
                        {"name": "MUSTER_POD_UID", "value": "a lie"},
                    ],
                }
            ]
        },
        labels={"team": "blue"},
        annotations={"note": "hello"},
    )  # fmt: skip
    found = await variables(node, pod)
    assert found["NAME"] == pod.name
    assert found["UID"] == pod.uid
    assert (found["TEAM"], found["NOTE"], found["NODE"]) == ("blue", "hello", node.name)
    assert found["HOST"].rpartition(".")[0] == found["IP"].rpartition(".")[0]
    assert (found["CPUS"], found["MIB"], found["COLOUR"], found["C_colour"]) == ("2", "1024", "blue", "blue")
    assert found["BOTH"] == f"{pod.name}-blue $(NAME) $(LATER)"
    assert "NONE" not in found
    assert found["MUSTER_POD_UID"] == pod.uid


@BY_KUBELET
async def test_nothing_of_the_users_environment_comes_in(node: NodeUnderTest) -> None:
    found = await variables(node, await node.run(*DUMP))
    assert "SECRET_OF_THE_USER" not in found
    assert found["HOME"].startswith(str(node.state_dir))
    assert found["TMPDIR"].startswith(str(node.state_dir))
    assert Path(found["PATH"].split(":")[0]) == Path(sys.executable).parent
    assert not exists(found["TMPDIR"])  # it went with the pod


@BY_KUBELET
async def test_gpus_are_given_to_one_pod_at_a_time(node: NodeUnderTest) -> None:
    wanted = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    script = ("sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES; sleep 1000")
    one = await node.running(await node.run(*script, container=wanted))
    two = await node.running(await node.run(*script, container=wanted))

    async def given() -> list[str]:
        texts = [node.logs(pod).strip() for pod in (one, two)]
        return texts if all(texts) else []

    first, second = await until("both say what they have", given)
    assert sorted([*first.split(","), *second.split(",")]) == ["0", "1", "2", "3"]
    third = await node.finished(await node.run(*script, container=wanted))
    assert third.status.reason == "OutOfnvidia.com/gpu"


@BY_KUBELET
async def test_a_pod_waits_for_the_gpus_of_a_force_deleted_pod_that_still_ends(node: NodeUnderTest) -> None:
    """The kubelet's admission does not count pods that the API server no longer has (kubernetes#104824)."""
    wanted = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    script = ("sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; sleep 1000")
    one = await node.running(await node.run(*script, container=wanted))
    await node.client.delete(Pod, one.name, namespace=NAMESPACE, grace_s=0)
    two = await node.run(*script, container=wanted, wait=False)
    two = await node.until(two, lambda pod: pod.finished or pod.status.phase == "Running")
    assert (two.status.phase, two.status.reason) == ("Running", "")
    assert not processes(f"MUSTER_POD_UID={one.uid}")


@BY_KUBELET
async def test_containers_share_out_the_gpus_of_their_pod(node: NodeUnderTest) -> None:
    def container(name: str, gpus: int) -> dict[str, object]:
        limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
        command = ["sh", "-c", "echo ${NVIDIA_VISIBLE_DEVICES-none}"]
        return {"name": name, "image": "none", "command": command, "resources": limits}

    pod = await node.create({"containers": [container("a", 1), container("b", 2), container("c", 0)]})
    pod = await node.finished(pod)
    assert [node.logs(pod, container=name) for name in "abc"] == ["0\n", "1,2\n", "none\n"]


@BY_KUBELET
async def test_volumes_and_translation_of_their_paths(node: NodeUnderTest, tmp_path: Path) -> None:
    config = await node.config_map({"a.txt": "A", "b.txt": "B"})
    await node.client.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{config}-s", "namespace": NAMESPACE},
            "data": {"key": base64.b64encode(b"hidden").decode()},
        }
    )
    (tmp_path / "host.txt").write_text("H")
    script = (
        "cat /etc/config/a.txt /etc/config/one /opt/secret/key $HOSTED/host.txt; echo; cat /etc/podinfo/labels; echo;"
        " echo data > /data/sub/x; cat /data/sub/x; ls /data/sub; stat -Lc %a /opt/secret/key; cat /etc/single.txt;"
        " echo; echo $LIST; pwd"
    )
    pod = await node.create(
        {
            "volumes": [
                {"name": "config", "configMap": {"name": config}},
                {"name": "one", "configMap": {"name": config, "items": [{"key": "b.txt", "path": "one"}]}},
                {"name": "secret", "secret": {"secretName": f"{config}-s", "defaultMode": 0o400}},
                {"name": "host", "hostPath": {"path": str(tmp_path)}},
                {"name": "data", "emptyDir": {}},
                {
                    "name": "info",
                    "downwardAPI": {"items": [{"path": "labels", **field("metadata.labels")}]},
                },
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": ["sh", "-c", script],
                    "workingDir": "/data/sub",
                    "env": [
                        {"name": "HOSTED", "value": "/mnt/host"},
                        {"name": "LIST", "value": "/data/p:/data/sub:/database:/usr/data"},
                    ],
                    "volumeMounts": [
                        {"name": "config", "mountPath": "/etc/config"},
                        {"name": "one", "mountPath": "/etc/config/one", "subPath": "one"},
                        {"name": "config", "mountPath": "/etc/single.txt", "subPath": "b.txt"},
                        {"name": "secret", "mountPath": "/opt/secret/"},
                        {"name": "host", "mountPath": "/mnt/host"},
                        {"name": "data", "mountPath": "/data"},
                        {"name": "data", "mountPath": "/data/sub", "subPath": "deeper"},
                        {"name": "info", "mountPath": "/etc/podinfo"},
                    ],
                }
            ],
        },
        labels={"team": "blue"},
    )
    pod = await node.finished(pod)
    lines = node.logs(pod).splitlines()
    volume = f"{node.state_dir}/pods/{pod.uid}/volumes/data"
    assert lines == [
        "ABhiddenH",
        'team="blue"',
        "data",
        "x",
        "400",
        "B",
        f"{volume}/p:{volume}/deeper:/database:/usr/data",
        f"{volume}/deeper",
    ]
    assert not exists(volume)


async def test_missing_config_map_waits_and_then_continues(node: NodeUnderTest) -> None:
    name = f"late-{node.name}"
    volumes = [{"name": "config", "configMap": {"name": name}}]
    mounts = {"volumeMounts": [{"name": "config", "mountPath": "/etc/config"}]}
    pod = await node.run("cat", "/etc/config/key", container=mounts, volumes=volumes)
    assert pod.status.phase == "Pending"
    await node.client.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"key": "now"},
        }
    )
    assert node.logs(await node.finished(pod)) == "now"


async def test_change_of_a_config_map_reaches_the_running_pod(node: NodeUnderTest) -> None:
    config = await node.config_map({"key": "before"})
    volumes = [{"name": "config", "configMap": {"name": config}}]
    mounts = {"volumeMounts": [{"name": "config", "mountPath": "/etc/config"}]}
    script = "while ! grep -q after /etc/config/key; do sleep 0.1; done; cat /etc/config/key"
    pod = await node.running(await node.run("sh", "-c", script, container=mounts, volumes=volumes))
    await node.client.patch(ConfigMap, config, {"data": {"key": "after"}}, namespace=NAMESPACE)
    assert node.logs(await node.finished(pod)) == "after"


async def test_label_change_reaches_the_downward_api_volume(node: NodeUnderTest) -> None:
    volumes = [{"name": "info", "downwardAPI": {"items": [{"path": "labels", **field("metadata.labels")}]}}]
    mounts = {"volumeMounts": [{"name": "info", "mountPath": "/etc/podinfo"}]}
    script = "while ! grep -q new /etc/podinfo/labels; do sleep 0.1; done"
    pod = await node.running(await node.run("sh", "-c", script, container=mounts, volumes=volumes))
    await node.client.patch(Pod, pod.name, {"metadata": {"labels": {"team": "new"}}}, namespace=NAMESPACE)
    assert (await node.finished(pod)).status.phase == "Succeeded"


async def test_token_is_bound_to_the_pod_and_has_its_audience(node: NodeUnderTest) -> None:
    token = {"serviceAccountToken": {"path": "token", "audience": "muster.dev", "expirationSeconds": 600}}
    pod = await node.run(
        "cat",
        "/var/run/muster/token",
        volumes=[{"name": "token", "projected": {"sources": [token]}}],
        container={"volumeMounts": [{"name": "token", "mountPath": "/var/run/muster"}]},
    )
    text = node.logs(await node.finished(pod)).split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert claims["aud"] == ["muster.dev"]
    assert claims["kubernetes.io"]["pod"] == {"name": pod.name, "uid": pod.uid}


async def test_missing_key_is_a_config_error_until_it_is_there(node: NodeUnderTest) -> None:
    config = await node.config_map({"other": "x"})
    env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": config, "key": "key"}}}]
    pod = await node.run("sh", "-c", "echo $KEY", container={"env": env})

    def refused(pod: Pod) -> bool:
        state = pod.status.container_statuses[0].state if pod.status.container_statuses else None
        return bool(state and state.waiting and state.waiting.reason == "CreateContainerConfigError")

    await node.until(pod, refused)
    await node.client.patch(ConfigMap, config, {"data": {"key": "found"}}, namespace=NAMESPACE)
    assert node.logs(await node.finished(pod)) == "found\n"
