"""Cases of other ways to read: tables, metadata alone, page by page."""

from __future__ import annotations

from tests.scenarios.apiserver.operations import (
    CM,
    NS,
    PODS,
    TABLE,
    Case,
    Step,
    config,
    get,
    pod,
    post,
    status_only,
    table_cells,
)

CASES = [
    Case(
        "tables",
        [
            post(PODS, pod("a")),
            get(PODS, **TABLE),
            get(PODS + "/a", **TABLE),
            get(CM, **TABLE),
            get("/api/v1/namespaces/{ns}", **TABLE),
            get(NS + "/serviceaccounts", **TABLE),
        ],
        table_cells,
    ),
    Case(
        "partial_metadata",
        [
            post(CM, config("a", x="1")),
            get(CM + "/a", Accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
            get(
                CM + "?fieldSelector=metadata.name=a",
                Accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            ),
        ],
    ),
    Case(
        "paging",
        [
            *[post(CM, config(f"c{index}")) for index in range(3)],
            get(CM + "?limit=2&fieldSelector=metadata.name!=kube-root-ca.crt"),
            get(CM + "?limit=2"),
            get(CM + "?continue=bogus"),
            get(CM + "?resourceVersion=999999999"),
            get(CM + "?resourceVersionMatch=Exact"),
            get(CM + "?watch=true&sendInitialEvents=true"),
            get(CM + "?resourceVersion=abc"),
            Step("DELETE", CM + "?labelSelector=none=none"),
        ],
        lambda answer: (
            {
                "items": [item["metadata"]["name"] for item in answer["items"]],
                "more": "continue" in answer["metadata"],
                "remaining": answer["metadata"].get("remainingItemCount"),
            }
            if isinstance(answer, dict) and "items" in answer
            else status_only(answer)
        ),
    ),
]
