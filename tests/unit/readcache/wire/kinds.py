"""Kinds and hostile objects for tests of the wire formats."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from muster.kube.objects.meta import Resource
from muster.readcache.kinds import CachedKind

PODS = CachedKind(Resource("", "v1", "pods", "Pod"))
WIDGETS = CachedKind(
    Resource("example.com", "v1", "widgets", "Widget"),
    custom=True,
    selectable=(".spec.color", ".spec.size", ".spec.on", ".spec.deep.er"),
)

TRAPS = (
    '{"metadata":{"resourceVersion":"666"}}',
    '"resourceVersion":"666"',
    ',"resourceVersion":"666",',
    '\\"resourceVersion\\":\\"666\\"',
    "}}\n{{",
    "\\",
    '"',
    "resourceVersion",
    "metadata",
    "\u2028<&>\x00\U0001f600",
    "k8s\x00",
    "\n\x012\x03666",
)
texts = st.one_of(st.sampled_from(TRAPS), st.text(max_size=30), st.text(min_size=120, max_size=140))
maps = st.dictionaries(
    st.one_of(st.sampled_from(("resourceVersion", "name", "uid", "labels")), texts), texts, max_size=4
)
trees: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(("metadata", "resourceVersion", "object", "type")), texts), inner, max_size=3
        ),
    ),
    max_leaves=8,
)
versions = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    """metadata of an object, in any order of its members."""
    found: dict[str, Any] = {
        "name": draw(texts),
        "uid": draw(texts),
        "resourceVersion": str(draw(versions)),
    }
    for key, values in (
        ("namespace", texts),
        ("labels", maps),
        ("annotations", maps),
        ("managedFields", st.lists(st.fixed_dictionaries({"fieldsV1": trees, "resourceVersion": texts}), max_size=2)),
    ):
        if draw(st.booleans()):
            found[key] = draw(values)
    return {key: found[key] for key in draw(st.permutations(list(found)))}


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {"volumes": draw(trees), "nodeName": draw(texts), "hostNetwork": draw(st.booleans())}
    status: dict[str, Any] = {"phase": draw(texts), "conditions": draw(trees)}
    return {"metadata": draw(metadata()), "spec": spec, "status": status}


@st.composite
def widgets(draw: st.DrawFn) -> dict[str, Any]:
    """Custom resources have their members in the order of the alphabet, so others may stand before metadata."""
    spec = {
        "color": draw(texts),
        "size": draw(st.integers(-(2**53), 2**53)),
        "on": draw(st.booleans()),
        "deep": draw(st.one_of(st.none(), st.fixed_dictionaries({"er": texts}))),
    }
    whole = {
        "apiVersion": "example.com/v1",
        "data": draw(trees),
        "kind": "Widget",
        "metadata": draw(metadata()),
        "spec": draw(st.one_of(st.just(spec), st.none())),
    }
    if draw(st.booleans()):
        del whole["data"]
    return whole


def compact(value: Any) -> bytes:
    """JSON as kube-apiserver writes it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for rune in "<>&\u2028\u2029":
        text = text.replace(rune, f"\\u{ord(rune):04x}")
    return text.encode()
