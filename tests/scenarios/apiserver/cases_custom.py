"""Cases of custom kinds."""

from __future__ import annotations

from typing import Any

from tests.scenarios.apiserver.operations import STRATEGIC, Case, Step, delete, get, patch, post, put, status_only

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.diff.example.com"},
    "spec": {
        "group": "diff.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                                    "narrow": {"type": "integer", "format": "int32"},
                                    "wide": {"type": "integer", "format": "int64"},
                                    "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                                    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "env": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "deep": {
                                        "type": "object",
                                        "properties": {"on": {"type": "boolean", "default": True}},
                                        "default": {},
                                    },
                                    "parts": {
                                        "type": "array",
                                        "maxItems": 2,
                                        "items": {
                                            "type": "object",
                                            "required": ["key"],
                                            "properties": {"key": {"type": "string"}},
                                        },
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["key"],
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "ready": {"type": "integer"},
                                    "conditions": {
                                        "type": "array",
                                        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
WIDGETS = "/apis/diff.example.com/v1/namespaces/{ns}/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def widget(name: str, /, **spec: Any) -> Any:
    return {"apiVersion": "diff.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


CASES = [
    Case(
        "custom",
        [
            Step("POST", CRDS, CRD, compare=False),
            Step("GET", WIDGETS, until=200),
            post(WIDGETS, widget("a", size=3)),
            post(WIDGETS, widget("a", size=3)),
            post(WIDGETS, widget("bad", size=11, mode="C", name="toolong", port=True, env={"a": 1})),
            post(WIDGETS, widget("bad", size="three")),
            post(WIDGETS, widget("bad")),
            Step("POST", WIDGETS, widget("bad", size=1, narrow=2**31), compare=False),  # the code
            Step("POST", WIDGETS, widget("bad", size=1, narrow=-(2**31) - 1), compare=False),  # the code
            Step("POST", WIDGETS, widget("bad", size=1, wide=2**63), compare=False),  # the code
            Step("POST", WIDGETS, widget("wide", size=1, narrow=2**31 - 1, wide=2**63 - 1), compare=False),  # the code
            post(WIDGETS, widget("bad", size=1, parts=[{"key": "a"}, {"key": "a"}])),
            post(WIDGETS, widget("bad", size=1, parts=[{"key": "a"}, {"key": "b"}, {"key": "c"}])),
            post(WIDGETS, widget("bad", size=1, parts=[{}])),
            post(WIDGETS + "?fieldValidation=Strict", widget("bad", size=1, bogus=2)),
            post(WIDGETS + "?fieldValidation=Warn", widget("warned", size=1, bogus=2, free={"any": {"thing": 1}})),
            put(WIDGETS + "/a", widget("a", size=4)),
            patch(WIDGETS + "/a", {"spec": {"size": 5}, "status": {"ready": 9}}),
            patch(WIDGETS + "/a/status", {"spec": {"size": 6}, "status": {"ready": 1}}),
            patch(WIDGETS + "/a", {"metadata": {"labels": {"x": "y"}}}),
            patch(WIDGETS + "/a?fieldValidation=Strict", {"spec": {"bogus": 6}}),
            patch(WIDGETS + "/a", {"spec": {"size": 5}}, STRATEGIC),
            get(WIDGETS),
            get(WIDGETS + "?fieldSelector=spec.size=1"),
            delete(WIDGETS + "/a"),
            get("/apis/diff.example.com/v1"),
        ],
        status_only,
        (CRDS + "/widgets.diff.example.com",),
    ),
]
