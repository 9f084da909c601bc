from __future__ import annotations

from typing import Any

from muster.embedded.objects import micro_timestamp
from tests.support.apicore import PODS, Cluster, bind, pod

MERGE = "application/merge-patch+json"
CM = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def node(cluster: Cluster, name: str) -> None:
    cluster.ok("POST", NODES, {"metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2027-01-01T00:00:00Z"}
    cluster.ok("PATCH", f"{NODES}/{name}/status", {"status": {"conditions": [ready]}}, content_type=MERGE)
    cluster.ok("POST", LEASES, {"metadata": {"name": name}, "spec": {"holderIdentity": name}})
    cluster.controllers.step()


def renew(cluster: Cluster, name: str) -> None:
    patch = {"spec": {"renewTime": micro_timestamp(cluster.clock.now())}}
    cluster.ok("PATCH", f"{LEASES}/{name}", patch, content_type=MERGE)


def taints(cluster: Cluster, name: str) -> set[tuple[str, str]]:
    spec = cluster.ok("GET", f"{NODES}/{name}").get("spec", {})
    return {(taint["key"].rpartition("/")[2], taint["effect"]) for taint in spec.get("taints", [])}


def ready(cluster: Cluster, name: str) -> str:
    conditions = cluster.ok("GET", f"{NODES}/{name}")["status"]["conditions"]
    return str(next(item["status"] for item in conditions if item["type"] == "Ready"))


def names(cluster: Cluster, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.ok("GET", path)["items"]]


def config(name: str, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}}


def owner(obj: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        **more,
    }


def test_a_silent_node_is_unknown_and_its_pods_leave_after_their_toleration() -> None:
    cluster = Cluster()
    node(cluster, "n1")
    cluster.ok("POST", PODS, pod("stays", tolerations=[{"operator": "Exists"}]))
    cluster.ok("POST", PODS, pod("leaves"))
    for name in ("stays", "leaves"):
        bind(cluster, name, "n1")
    for _ in range(10):
        cluster.advance(20)
        renew(cluster, "n1")
    assert ready(cluster, "n1") == "True"
    assert taints(cluster, "n1") == set()
    cluster.advance(50)
    assert ready(cluster, "n1") == "Unknown"
    assert taints(cluster, "n1") == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
    cluster.advance(290)
    assert "deletionTimestamp" not in cluster.ok("GET", f"{PODS}/leaves")["metadata"]
    cluster.advance(20)
    gone = cluster.ok("GET", f"{PODS}/leaves")
    assert "deletionTimestamp" in gone["metadata"]
    reasons = {item["type"]: item.get("reason") for item in gone["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "DeletionByTaintManager"
    assert "deletionTimestamp" not in cluster.ok("GET", f"{PODS}/stays")["metadata"]


def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    cluster = Cluster()
    node(cluster, "n1")
    cluster.ok("POST", PODS, pod("a"))
    bind(cluster, "a", "n1")
    cluster.advance(60)
    assert ready(cluster, "n1") == "Unknown"
    back = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2027-01-02T00:00:00Z"}
    cluster.ok("PATCH", f"{NODES}/n1/status", {"status": {"conditions": [back]}}, content_type=MERGE)
    for _ in range(20):
        cluster.advance(20)
        renew(cluster, "n1")
    assert taints(cluster, "n1") == set()
    assert "deletionTimestamp" not in cluster.ok("GET", f"{PODS}/a")["metadata"]


def test_other_writers_taints_are_left_alone() -> None:
    cluster = Cluster()
    node(cluster, "n1")
    mine = {"spec": {"taints": [{"key": "me.dev/x", "effect": "NoSchedule"}], "unschedulable": True}}
    cluster.ok("PATCH", f"{NODES}/n1", mine, content_type=MERGE)
    cluster.controllers.step()
    assert taints(cluster, "n1") == {("x", "NoSchedule"), ("unschedulable", "NoSchedule")}
    cluster.ok("PATCH", f"{NODES}/n1", {"spec": {"unschedulable": None}}, content_type=MERGE)
    cluster.controllers.step()
    assert taints(cluster, "n1") == {("x", "NoSchedule")}


def test_pods_of_a_removed_node_are_removed() -> None:
    cluster = Cluster()
    node(cluster, "n1")
    cluster.ok("POST", PODS, pod("a"))
    bind(cluster, "a", "n1")
    cluster.ok("DELETE", f"{NODES}/n1")
    cluster.advance(30)
    assert names(cluster, PODS) == ["a"]
    cluster.advance(20)
    assert names(cluster, PODS) == []


def test_dependents_follow_their_owner() -> None:
    cluster = Cluster()
    top = cluster.ok("POST", CM, config("top"))
    middle = cluster.ok("POST", CM, config("middle", ownerReferences=[owner(top)]))
    cluster.ok("POST", CM, config("bottom", ownerReferences=[owner(middle)]))
    other = cluster.ok("POST", CM, config("other"))
    cluster.ok("POST", CM, config("shared", ownerReferences=[owner(top), owner(other)]))
    cluster.ok("DELETE", f"{CM}/top")
    cluster.controllers.step()
    assert names(cluster, CM) == ["kube-root-ca.crt", "other", "shared"]
    assert [ref["name"] for ref in cluster.ok("GET", f"{CM}/shared")["metadata"]["ownerReferences"]] == ["other"]


def test_orphans_stay() -> None:
    cluster = Cluster()
    top = cluster.ok("POST", CM, config("top"))
    cluster.ok("POST", CM, config("child", ownerReferences=[owner(top)]))
    cluster.ok("DELETE", f"{CM}/top", {"propagationPolicy": "Orphan"})
    cluster.controllers.step()
    assert names(cluster, CM) == ["child", "kube-root-ca.crt"]
    assert "ownerReferences" not in cluster.ok("GET", f"{CM}/child")["metadata"]


def test_foreground_deletion_waits_for_blocking_dependents() -> None:
    cluster = Cluster()
    top = cluster.ok("POST", CM, config("top"))
    child = config("child", ownerReferences=[owner(top, blockOwnerDeletion=True)], finalizers=["me.dev/hold"])
    cluster.ok("POST", CM, child)
    cluster.ok("DELETE", f"{CM}/top", {"propagationPolicy": "Foreground"})
    cluster.controllers.step()
    assert names(cluster, CM) == ["child", "kube-root-ca.crt", "top"]
    assert "deletionTimestamp" in cluster.ok("GET", f"{CM}/child")["metadata"]
    cluster.ok("PATCH", f"{CM}/child", {"metadata": {"finalizers": None}}, content_type=MERGE)
    cluster.controllers.step()
    assert names(cluster, CM) == ["kube-root-ca.crt"]


def test_an_object_whose_owner_never_was_is_collected() -> None:
    cluster = Cluster()
    ghost = {"metadata": {"name": "ghost", "uid": "11111111-1111-1111-1111-111111111111"}}
    cluster.ok("POST", CM, config("child", ownerReferences=[owner(ghost)]))
    cluster.controllers.step()
    assert names(cluster, CM) == ["kube-root-ca.crt"]


def test_a_namespace_goes_with_its_contents_and_takes_nothing_new_meanwhile() -> None:
    cluster = Cluster()
    cluster.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    inside = "/api/v1/namespaces/team/configmaps"
    cluster.ok("POST", inside, config("held", finalizers=["me.dev/hold"]))
    cluster.ok("POST", inside, config("free"))
    gone = cluster.ok("DELETE", "/api/v1/namespaces/team")
    assert gone["status"]["phase"] == "Terminating"
    cluster.controllers.step()
    assert names(cluster, inside) == ["held"]
    code, status = cluster.send("POST", inside, config("late"))
    assert (code, status["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    cluster.ok("PATCH", f"{inside}/held", {"metadata": {"finalizers": None}}, content_type=MERGE)
    cluster.controllers.step()
    assert "team" not in names(cluster, "/api/v1/namespaces")


def test_the_default_service_account_comes_back() -> None:
    cluster = Cluster()
    cluster.ok("DELETE", "/api/v1/namespaces/default/serviceaccounts/default")
    cluster.controllers.step()
    assert names(cluster, "/api/v1/namespaces/default/serviceaccounts") == ["default"]


def test_eviction_keeps_to_the_budget() -> None:
    cluster = Cluster(grace_s=None)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("a", "b"):
        cluster.ok("POST", PODS, pod(name, labels={"app": "x"}))
        bind(cluster, name, "n1")
        cluster.ok("PATCH", f"{PODS}/{name}/status", running, content_type=MERGE)
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    cluster.ok("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    cluster.controllers.step()
    assert (
        cluster.ok("GET", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b")["status"]["disruptionsAllowed"]
        == 1
    )
    cluster.ok("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}})
    assert cluster.send("POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})[0] == 429, "before it is counted"
    cluster.controllers.step()
    code, status = cluster.send("POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})
    assert (code, status["details"]["causes"][0]["message"]) == (
        429,
        "The disruption budget b needs 1 healthy pods and has 1 currently",
    )


def test_a_quota_refuses_pod_three_of_four_and_makes_room_again() -> None:
    cluster = Cluster()
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.nvidia.com/gpu": "16"}}}
    cluster.ok("POST", "/api/v1/namespaces/default/resourcequotas", quota)
    gpus = [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    for name in ("a", "b"):
        cluster.ok("POST", PODS, pod(name, containers=gpus))
    code, status = cluster.send("POST", PODS, pod("c", containers=gpus))
    assert (code, status["message"]) == (
        403,
        'pods "c" is forbidden: exceeded quota: q, requested: pods=1,requests.nvidia.com/gpu=8, '
        "used: pods=2,requests.nvidia.com/gpu=16, limited: pods=2,requests.nvidia.com/gpu=16",
    )
    cluster.controllers.step()
    used = cluster.ok("GET", "/api/v1/namespaces/default/resourcequotas/q")["status"]["used"]
    assert used == {"pods": "2", "requests.nvidia.com/gpu": "16"}
    cluster.ok("DELETE", f"{PODS}/a")
    cluster.ok("POST", PODS, pod("c", containers=gpus))


def test_events_live_for_an_hour() -> None:
    cluster = Cluster(grace_s=None)
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    cluster.ok("POST", "/api/v1/namespaces/default/events", {"metadata": {"name": "e"}, "involvedObject": about})
    cluster.controllers.step()
    cluster.advance(3500, 100)
    assert names(cluster, "/api/v1/namespaces/default/events") == ["e"]
    cluster.advance(200, 100)
    assert names(cluster, "/api/v1/namespaces/default/events") == []


def test_steady_state_writes_nothing() -> None:
    cluster = Cluster()
    node(cluster, "n1")
    cluster.ok("POST", PODS, pod("a"))
    bind(cluster, "a", "n1")
    cluster.controllers.step()
    version = cluster.store.version
    cluster.advance(30)
    assert cluster.store.version == version
