"""Cases of pods: defaults, refusals, changes, binding, deletion."""

from __future__ import annotations

from tests.scenarios.apiserver.operations import (
    PODS,
    STRATEGIC,
    Case,
    delete,
    get,
    message_head,
    patch,
    pod,
    post,
    status_only,
)

CASES = [
    Case(
        "pod_defaults",
        [
            post(PODS, pod("plain")),
            post(
                PODS,
                pod(
                    "rich",
                    restartPolicy="Never",
                    hostNetwork=True,
                    automountServiceAccountToken=False,
                    nodeSelector={"a": "b"},
                    tolerations=[{"key": "k", "operator": "Exists"}],
                    volumes=[
                        {"name": "e"},
                        {"name": "h", "hostPath": {"path": "/x"}},
                        {"name": "cm", "configMap": {"name": "c"}},
                        {
                            "name": "t",
                            "projected": {
                                "sources": [{"serviceAccountToken": {"path": "token", "audience": "muster.dev"}}]
                            },
                        },
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                    ],
                    initContainers=[{"name": "i", "image": "a/b:1.2"}],
                    containers=[
                        {
                            "name": "c",
                            "image": "registry:5000/a/b@sha256:" + "0" * 64,
                            "command": ["x"],
                            "resources": {
                                "limits": {"cpu": "2000m", "memory": "1024Mi", "nvidia.com/gpu": "8"},
                                "requests": {"cpu": "500m"},
                            },
                            "ports": [{"containerPort": 80}],
                            "env": [
                                {"name": "A", "value": "b"},
                                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            ],
                            "readinessProbe": {"httpGet": {"port": 80}},
                            "volumeMounts": [{"name": "e", "mountPath": "/e"}],
                        }
                    ],
                ),
            ),
            get(PODS + "?fieldSelector=spec.nodeName=,status.phase=Pending"),
            get(PODS + "?labelSelector=app%20in%20(x,y),!zz"),
        ],
    ),
    Case(
        "pod_refused",
        [
            post(PODS, pod("a", containers=[])),
            post(PODS, pod("a", containers=[{"name": "C_", "image": "x"}])),
            post(PODS, pod("a", containers=[{"name": "c"}])),
            post(PODS, pod("a", containers=[{"name": "c", "image": "x"}, {"name": "c", "image": "x"}])),
            post(PODS, pod("a", restartPolicy="Sometimes")),
            post(PODS, pod("a", serviceAccountName="absent")),
            post(PODS, pod("a", priorityClassName="absent")),
            post(
                PODS,
                pod("a", containers=[{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]),
            ),
            post(PODS, pod("a", containers=[{"name": "c", "image": "x", "env": [{"name": "", "value": "1"}]}])),
            post(
                PODS,
                pod(
                    "a",
                    containers=[
                        {"name": "c", "image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                    ],
                ),
            ),
            post(
                PODS,
                pod("a", containers=[{"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]),
            ),
            post(PODS, pod("a", tolerations=[{"operator": "Equal", "value": "x"}])),
            post(PODS, pod("a", activeDeadlineSeconds=0)),
        ],
        status_only,
    ),
    Case(
        "pod_update",
        [
            post(PODS, pod("a")),
            patch(PODS + "/a", {"spec": {"nodeName": "other"}}),
            patch(PODS + "/a", {"spec": {"restartPolicy": "Never"}}),
            patch(PODS + "/a", {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}, STRATEGIC),
            patch(PODS + "/a", {"spec": {"containers": [{"name": "d", "image": "busybox:2"}]}}, STRATEGIC),
            patch(PODS + "/a", {"spec": {"activeDeadlineSeconds": 100}}),
            patch(PODS + "/a/status", {"status": {"phase": "Running"}, "spec": {"restartPolicy": "Never"}}, STRATEGIC),
            patch(PODS + "/a", {"status": {"phase": "Failed"}}, STRATEGIC),
            get(PODS + "/a"),
        ],
        message_head,
    ),
    Case(
        "binding",
        [
            post(PODS, pod("a")),
            post(PODS + "/absent/binding", {"metadata": {"name": "absent"}, "target": {"kind": "Node", "name": "n"}}),
            post(
                PODS + "/a/binding",
                {
                    "metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"},
                    "target": {"kind": "Node", "name": "n"},
                },
            ),
            post(PODS + "/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "diff-node"}}),
            post(PODS + "/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "diff-node"}}),
            get(PODS + "/a"),
            delete(PODS + "/a"),
            get(PODS + "/a"),
            delete(PODS + "/a"),
            delete(PODS + "/a", {"gracePeriodSeconds": 5}),
            delete(PODS + "/a", {"gracePeriodSeconds": 0}),
            get(PODS + "/a"),
        ],
        status_only,
    ),
    Case(
        "pod_delete",
        [
            post(PODS, pod("a")),
            delete(PODS + "/a"),
            get(PODS + "/a"),
            post(PODS, {**pod("b"), "metadata": {"name": "b", "finalizers": ["x.dev/y"]}}),
            delete(PODS + "/b"),
            get(PODS + "/b"),
            patch(PODS + "/b", {"metadata": {"finalizers": ["x.dev/y", "x.dev/z"]}}),
            patch(PODS + "/b", {"metadata": {"finalizers": None}}),
            get(PODS + "/b"),
            post(PODS, pod("c")),
            post(PODS + "/c/binding", {"metadata": {"name": "c"}, "target": {"kind": "Node", "name": "diff-node"}}),
            patch(PODS + "/c/status", {"status": {"phase": "Succeeded"}}),
            delete(PODS + "/c"),
            get(PODS + "/c"),
        ],
        status_only,
    ),
]
