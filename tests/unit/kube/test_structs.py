from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest

from muster.kube.objects.auth import TokenRequestStatus, TokenReviewSpec
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.core import ConfigMap, Secret
from muster.kube.objects.meta import Listing, ObjectMeta, Resource, split_key
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import decode, encode, from_dict, to_dict

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "ns", "creationTimestamp": "2024-05-01T10:00:00Z"},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "envFrom": [{"configMapRef": {"name": "x", "optional": False}, "prefix": "P_"}],
                "ports": [{"containerPort": 80, "hostIP": "127.0.0.1"}],
                "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3},
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
                "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "500m"}},
                "securityContext": {"runAsUser": 0},
            }
        ],
        "volumes": [
            {
                "name": "t",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "audience": "muster.dev"}},
                        {"downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
                    ]
                },
            },
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "d", "downwardAPI": {"items": []}},
        ],
        "terminationGracePeriodSeconds": 0,
        "priority": 0,
        "tolerations": [{"operator": "Exists"}],
    },
    "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "qosClass": "Burstable", "hostIP": "10.0.0.2"},
}


def test_a_pod_survives_the_round_trip_with_kubernetes_spelling() -> None:
    again = to_dict(from_dict(POD, Pod))
    del POD["spec"]["volumes"][2]["downwardAPI"]["items"]  # type: ignore[index]
    assert again == POD


def test_unknown_fields_are_skipped_and_absent_ones_omitted() -> None:
    pod = decode(b'{"metadata":{"name":"a","managedFields":[{}]},"spec":{"newField":{"x":[1]}}}', Pod)
    assert (pod.key, pod.kind, pod.api_version, pod.metadata.labels) == ("a", "Pod", "v1", {})
    assert json.loads(encode(ConfigMap(metadata=ObjectMeta(name="a")))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
    }


def test_objects_cannot_be_changed_in_place() -> None:
    pod = Pod(metadata=ObjectMeta(name="a"))
    with pytest.raises(AttributeError):
        pod.metadata = ObjectMeta()  # type: ignore[misc]
    assert msgspec.structs.replace(pod, metadata=ObjectMeta(name="b")).name == "b"
    assert pod.name == "a"


def test_micro_times_always_have_six_digits() -> None:
    whole = datetime(2024, 1, 1, tzinfo=UTC)
    spec = LeaseSpec(holder_identity="me", renew_time=whole, acquire_time=whole.replace(microsecond=120000))
    text = encode(Lease(spec=spec)).decode()
    assert '"renewTime":"2024-01-01T00:00:00.000001Z"' in text
    assert '"acquireTime":"2024-01-01T00:00:00.120000Z"' in text


def test_binary_values_are_base64_on_the_wire_and_secrets_stay_out_of_reprs() -> None:
    secret = Secret(metadata=ObjectMeta(name="s"), data={"key": b"hunter2"}, string_data={"other": "hunter3"})
    assert json.loads(encode(secret))["data"] == {"key": "aHVudGVyMg=="}
    assert decode(encode(secret), Secret) == secret
    for shown in (repr(secret), repr(TokenReviewSpec(token="hunter4")), repr(TokenRequestStatus(token="hunter5"))):
        assert "hunter" not in shown
    assert "key" in repr(secret)


def test_node_status_spelling() -> None:
    data = {
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "x://1"},
        "status": {
            "nodeInfo": {"bootID": "b", "machineID": "m", "systemUUID": "u"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": None, "sizeBytes": 5}],
        },
    }
    node = from_dict(data, Node)
    assert node.status.node_info is not None
    assert node.status.node_info.boot_id == "b"
    assert to_dict(node)["spec"] == {"podCIDR": "10.0.0.0/24", "providerID": "x://1"}


def test_bad_objects_name_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.containers\[0\]\.name"):
        from_dict({"spec": {"containers": [{"name": 5}]}}, Pod)


def test_listing_reads_null_free_pages() -> None:
    page = decode(
        b'{"metadata":{"resourceVersion":"7","continue":"t"},"items":[{"metadata":{"name":"a"}}]}', Listing[Pod]
    )
    assert (page.resource_version, page.continue_, [pod.name for pod in page.items]) == ("7", "t", ["a"])


def test_resource_paths() -> None:
    jobs = Resource("muster.dev", "v1alpha1", "trainingjobs", "TrainingJob")
    assert jobs.path("ns", "a", "status") == "/apis/muster.dev/v1alpha1/namespaces/ns/trainingjobs/a/status"
    assert jobs.path() == "/apis/muster.dev/v1alpha1/trainingjobs"
    assert Node.RESOURCE.path("ignored", "n") == "/api/v1/nodes/n"
    assert split_key("ns/a") == ("ns", "a")
    assert split_key("n") == ("", "n")
