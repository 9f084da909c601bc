from __future__ import annotations

from typing import Any

from tests.support.apicore import PODS, Cluster, bind, pod

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def token(cluster: Cluster, pod_name: str, *audiences: str, seconds: int = 600) -> str:
    reference = {"kind": "Pod", "apiVersion": "v1", "name": pod_name}
    spec = {"audiences": list(audiences), "expirationSeconds": seconds, "boundObjectRef": reference}
    made = cluster.ok("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": spec})
    return str(made["status"]["token"])


def review(cluster: Cluster, text: str, *audiences: str) -> Any:
    return cluster.ok("POST", REVIEWS, {"spec": {"token": text, "audiences": list(audiences)}})["status"]


def prepared() -> tuple[Cluster, str]:
    cluster = Cluster(grace_s=None)
    cluster.ok("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    cluster.ok("POST", PODS, pod("a"))
    bind(cluster, "a", "n1")
    return cluster, token(cluster, "a", "muster.dev")


def test_a_pods_token_says_which_pod_it_is() -> None:
    cluster, text = prepared()
    status = review(cluster, text, "muster.dev", "other")
    uid = cluster.ok("GET", f"{PODS}/a")["metadata"]["uid"]
    assert status["authenticated"] is True
    assert status["audiences"] == ["muster.dev"]
    assert status["user"]["username"] == "system:serviceaccount:default:default"
    extra = status["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["a"]
    assert extra["authentication.kubernetes.io/pod-uid"] == [uid]
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]


def test_token_for_another_audience_proves_nothing() -> None:
    cluster, text = prepared()
    status = review(cluster, text, "other")
    assert "authenticated" not in status
    assert "token audiences" in status["error"]


def test_a_changed_token_proves_nothing() -> None:
    cluster, text = prepared()
    head, body, signature = text.split(".")
    for forged in (f"{head}.{body}.{signature[:-4]}AAAA", f"{head}.{body}x.{signature}", "nonsense", "", "a.b.c"):
        assert "authenticated" not in review(cluster, forged, "muster.dev")


def test_a_token_expires() -> None:
    cluster, text = prepared()
    cluster.clock.time += 599
    assert review(cluster, text, "muster.dev")["authenticated"]
    cluster.clock.time += 2
    assert "expired" in review(cluster, text, "muster.dev")["error"]


def test_a_deleted_pods_token_proves_nothing_even_for_a_pod_of_the_same_name() -> None:
    cluster, text = prepared()
    cluster.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert "authenticated" not in review(cluster, text, "muster.dev")
    cluster.ok("POST", PODS, pod("a"))
    assert "authenticated" not in review(cluster, text, "muster.dev")
