from __future__ import annotations

from typing import Any

import pytest

from muster.embedded.apiserver.status import StatusError
from muster.embedded.apiserver.verbs.patches import json_patch, merge_patch
from muster.embedded.apiserver.verbs.strategic import strategic_merge


@pytest.mark.parametrize(
    ("document", "patch", "wanted"),
    [
        # The examples of RFC 7386, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(document: Any, patch: Any, wanted: Any) -> None:
    assert merge_patch(document, patch) == wanted


@pytest.mark.parametrize(
    ("document", "operations", "wanted"),
    [
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/m~0n"}], {}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
    ],
)
def test_json_patch(document: Any, operations: Any, wanted: Any) -> None:
    before = repr(document)
    assert json_patch(document, operations) == wanted
    assert repr(document) == before


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "replace", "path": "/missing", "value": 2}],
        [{"op": "remove", "path": "/l/7"}],
        [{"op": "add", "path": "/l/9", "value": 1}],
        [{"op": "unknown", "path": "/a"}],
        [{"op": "add", "path": "/x"}],
    ],
)
def test_a_json_patch_that_does_not_apply_is_422(operations: Any) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1, "l": [1]}, operations)
    assert caught.value.code == 422


def test_lists_merge_by_their_key() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}}
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "c"}]}}
    assert strategic_merge(pod, patch)["spec"]["containers"] == [
        {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b"},
        {"name": "c"},
    ]


def test_taints_and_tolerations_are_replaced_as_a_whole() -> None:
    node = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    wanted = {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}
    assert strategic_merge(node, wanted) == wanted


def test_directives() -> None:
    pod = {"spec": {"containers": [{"name": "a"}, {"name": "b"}], "x": {"keep": 1, "drop": 2}}}
    patch = {
        "spec": {
            "containers": [{"name": "a", "$patch": "delete"}],
            "x": {"$retainKeys": ["keep"]},
        },
        "metadata": {"finalizers": ["new"], "$deleteFromPrimitiveList/finalizers": ["old"]},
    }
    assert strategic_merge({**pod, "metadata": {"finalizers": ["old", "kept"]}}, patch) == {
        "spec": {"containers": [{"name": "b"}], "x": {"keep": 1}},
        "metadata": {"finalizers": ["kept", "new"]},
    }


def test_set_element_order() -> None:
    node = {"status": {"conditions": [{"type": "A"}, {"type": "B"}]}}
    order = [{"type": "B"}, {"type": "A"}]
    patch = {"status": {"$setElementOrder/conditions": order, "conditions": [{"type": "A", "status": "True"}]}}
    assert strategic_merge(node, patch) == {"status": {"conditions": [{"type": "B"}, {"type": "A", "status": "True"}]}}
