"""Lists: resourceVersion, pages, selectors, errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from muster.readcache.hub.item import Item
from muster.readcache.hub.selection import Selection
from muster.readcache.request import Answer, Forward
from tests.unit.readcache.reads.loaded import Cache, body, names, pod

LIST = "/api/v1/pods"


def three() -> Cache:
    """Pods x, y and z of version 10, y on a node, then a change of x (11) and the removal of z (12)."""
    cache = Cache(pod("x", 3, labels={"app": "one"}), pod("y", 4, node="n"), pod("z", 5))
    cache.source.apply("MODIFIED", pod("x", 11, labels={"app": "two"}))
    cache.source.apply("DELETED", pod("z", 12))
    return cache


def meta(answer: object) -> dict[str, Any]:
    assert isinstance(answer, Answer)
    found: dict[str, Any] = json.loads(body(answer))["metadata"]
    return found


def status(answer: object) -> dict[str, Any]:
    assert isinstance(answer, Answer)
    assert answer.status >= 400
    found: dict[str, Any] = json.loads(body(answer))
    assert found["code"] == answer.status
    return found


def token(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=="))
    return found


def made_token(**members: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(members).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "query", ["", "?resourceVersion=0", "?resourceVersion=10", "?resourceVersion=12", "?limit=500"]
)
async def test_list_is_the_newest_state(query: str) -> None:
    answer = await three().ask(LIST + query)
    assert names(answer) == ["x", "y"]
    assert meta(answer)["resourceVersion"] == "12"


@pytest.mark.parametrize("query", ["?resourceVersion=11&resourceVersionMatch=Exact", "?resourceVersion=11&limit=500"])
async def test_list_at_an_exact_version_is_read_from_the_log(query: str) -> None:
    answer = await three().ask(LIST + query)
    assert names(answer) == ["x", "y", "z"]
    assert meta(answer) == {"resourceVersion": "11"}


async def test_list_older_than_the_log_is_forwarded() -> None:
    assert isinstance(await three().ask(f"{LIST}?resourceVersion=9&resourceVersionMatch=Exact"), Forward)


async def test_version_0_ignores_the_limit() -> None:
    answer = await three().ask(f"{LIST}?resourceVersion=0&limit=1")
    assert names(answer) == ["x", "y"]
    assert "continue" not in meta(answer)


async def test_pages_come_from_one_version_and_count_what_remains() -> None:
    cache = three()
    first = await cache.ask(f"{LIST}?resourceVersion=11&limit=1")
    assert names(first) == ["x"]
    assert meta(first)["remainingItemCount"] == 2
    assert token(meta(first)["continue"]) == {"v": "meta.k8s.io/v1", "rv": 11, "start": "/a/x\0"}
    cache.source.apply("ADDED", pod("xx", 13))
    second = await cache.ask(f"{LIST}?limit=1&continue={meta(first)['continue']}")
    assert names(second) == ["y"]
    assert meta(second)["remainingItemCount"] == 1
    last = await cache.ask(f"{LIST}?limit=1&continue={meta(second)['continue']}")
    assert names(last) == ["z"]
    assert meta(last) == {"resourceVersion": "11"}


async def test_token_of_a_namespace_is_relative_to_it() -> None:
    answer = await three().ask("/api/v1/namespaces/a/pods?limit=1")
    assert token(meta(answer)["continue"])["start"] == "/x\0"
    again = await three().ask(f"/api/v1/namespaces/a/pods?continue={meta(answer)['continue']}")
    assert names(again) == ["y"]


async def test_token_as_etcd_writes_it_is_read() -> None:
    written = made_token(v="meta.k8s.io/v1", rv=12, start="a/x\0")
    assert names(await three().ask(f"{LIST}?continue={written}")) == ["y"]


async def test_inconsistent_token_continues_in_the_newest_state() -> None:
    cache = three()
    written = made_token(v="meta.k8s.io/v1", rv=-1, start="a/x\0")
    answer = await cache.ask(f"{LIST}?continue={written}")
    assert names(answer) == ["y"]
    assert meta(answer)["resourceVersion"] == "12"
    cache.source.fresh = False
    assert status(await cache.ask(f"{LIST}?continue={written}"))["code"] == 503


@pytest.mark.parametrize(
    "written",
    [
        "abc",
        made_token(v="other", rv=12, start="a/x\0"),
        made_token(v="meta.k8s.io/v1", rv=0, start="a/x\0"),
        made_token(v="meta.k8s.io/v1", rv=12, start=""),
        made_token(v="meta.k8s.io/v1", rv=12, start="../x\0"),
        made_token(v="meta.k8s.io/v1", rv=12, start="a//x\0"),
        made_token(v="meta.k8s.io/v1", rv=12, start="a/x"),
        made_token(v="meta.k8s.io/v1", rv=9, start="a/x\0"),
        made_token(v="meta.k8s.io/v1", rv=10_000, start="a/x\0"),  # of the API server, or of another replica
    ],
)
async def test_tokens_that_only_the_api_server_can_judge_are_forwarded(written: str) -> None:
    assert isinstance(await three().ask(f"{LIST}?continue={written}"), Forward)


async def test_token_excludes_a_version() -> None:
    written = made_token(v="meta.k8s.io/v1", rv=12, start="a/x\0")
    refused = status(await three().ask(f"{LIST}?resourceVersion=5&continue={written}"))
    assert refused["message"] == "specifying resource version is not allowed when using continue"


async def test_selected_pages_have_a_token_while_objects_follow_and_no_count() -> None:
    answer = await three().ask(f"{LIST}?limit=1&labelSelector=app")
    assert names(answer) == ["x"]
    assert "continue" in meta(answer)
    assert "remainingItemCount" not in meta(answer)


async def test_page_by_index_ends_with_the_last_object_of_the_index() -> None:
    cache = Cache(pod("x", 3, node="n", labels={"app": "one"}), pod("y", 4))
    selected = f"{LIST}?limit=1&fieldSelector=spec.nodeName=n&labelSelector=app"
    assert "continue" not in meta(await cache.ask(selected))
    cache.source.apply("ADDED", pod("z", 11, node="n"))
    assert "continue" in meta(await cache.ask(selected))


async def test_pages_of_one_name_in_all_namespaces_are_like_other_pages() -> None:
    cache = Cache(pod("x", 3), pod("y", 4))
    assert "continue" in meta(await cache.ask(f"{LIST}?limit=1&fieldSelector=metadata.name=x"))
    assert "continue" not in meta(await cache.ask("/api/v1/namespaces/a/pods?limit=1&fieldSelector=metadata.name=x"))


async def test_selectors() -> None:
    cache = three()
    assert names(await cache.ask(f"{LIST}?labelSelector=app=two")) == ["x"]
    assert names(await cache.ask(f"{LIST}?labelSelector=app%20in%20(one,two),!tier")) == ["x"]
    assert names(await cache.ask(f"{LIST}?fieldSelector=spec.nodeName=n")) == ["y"]
    assert names(await cache.ask(f"{LIST}?fieldSelector=metadata.name!=x")) == ["y"]
    assert names(await cache.ask(f"{LIST}?fieldSelector=metadata.name=x")) == ["x"]
    assert names(await cache.ask("/api/v1/namespaces/empty/pods")) == []


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=app%20in%20x",
        "labelSelector=%3Dx",
        "labelSelector=a,,b",
        "labelSelector=a%3D" + "v" * 64,
        "fieldSelector=spec.unknown=x",
        "fieldSelector=metadata.name",
        "fieldSelector=metadata.name=a%5C,b",
        "limit=x",
        "limit=",
        "timeoutSeconds=x",
        "fieldSelector=metadata.name=x,metadata.namespace=a&resourceVersion=11&resourceVersionMatch=Exact",
        "fieldSelector=metadata.namespace=a&limit=1",
    ],
)
async def test_wrong_and_rare_parameters_are_forwarded(query: str) -> None:
    assert isinstance(await three().ask(f"{LIST}?{query}"), Forward)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("resourceVersionMatch=Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ("resourceVersion=0&resourceVersionMatch=Exact", '"exact" is forbidden for resourceVersion "0"'),
        ("resourceVersion=1&resourceVersionMatch=Foo", 'Unsupported value: "Foo": supported values: "Exact"'),
        ("resourceVersion=1&resourceVersionMatch=Exact&continue=x", "is forbidden when continue is provided"),
        ("sendInitialEvents=false", "sendInitialEvents is forbidden for list"),
    ],
)
async def test_combinations_that_kube_apiserver_refuses(query: str, message: str) -> None:
    refused = status(await three().ask(f"{LIST}?{query}"))
    assert (refused["code"], refused["reason"]) == (422, "Invalid")
    assert message in refused["message"]
    assert refused["details"]["causes"][0]["message"] in refused["message"]


async def test_version_that_is_not_a_number() -> None:
    refused = status(await three().ask(f"{LIST}?resourceVersion=abc"))
    assert refused["code"] == 400
    assert refused["message"].endswith('strconv.ParseUint: parsing "abc": invalid syntax')
    refused = status(await three().ask(f"{LIST}?resourceVersion=18446744073709551616"))
    assert refused["message"].endswith("value out of range")


@pytest.mark.parametrize("query", ["resourceVersion=13", "resourceVersion=13&resourceVersionMatch=Exact"])
async def test_version_that_does_not_come_is_a_timeout(query: str) -> None:
    answer = await three().ask(f"{LIST}?{query}")
    refused = status(answer)
    assert refused["code"] == 504
    assert refused["message"] == "Timeout: Too large resource version: 13, current: 12"
    assert refused["details"]["retryAfterSeconds"] == 1
    assert refused["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert isinstance(answer, Answer)
    assert ("Retry-After", "1") in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/b/pods",
        f"{LIST}?fieldSelector=spec.nodeName%3Dn",
        "/api/v1/namespaces/b/pods?fieldSelector=metadata.name%3Dx",
    ],
)
async def test_karmada_2518_list_of_few_objects_does_not_look_at_all_others(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """karmada-io/karmada#2518: lists with a filter took seconds in a large cache."""
    others = [pod(f"p{index}", index + 1, node="other") for index in range(100)]
    cache = Cache(*others, pod("x", 200, namespace="b", node="n"), version=200)
    looked_at = []
    matches = Selection.matches

    def counted(self: Selection, item: Item) -> bool:
        looked_at.append(item.key)
        return matches(self, item)

    monkeypatch.setattr(Selection, "matches", counted)
    assert names(await cache.ask(path)) == ["x"]
    assert set(looked_at) <= {"b/x"}
