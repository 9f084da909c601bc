"""Many nodes that break at once: what comes first, and what it costs the API server."""

from __future__ import annotations

import asyncio

import pytest

from muster.embedded.apiserver.request import Request
from tests.unit.remediation.virtualward import VirtualWard

SESSIONS = "/apis/muster.dev/v1alpha1/noderemediations"


@pytest.mark.slow
def test_nothing_is_written_about_a_node_before_all_that_broke_with_it_are_out_of_use() -> None:
    ward = VirtualWard()
    names = [f"n{number:03}" for number in range(150)]
    for name in names:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        for burst in (names[:75], names[75:]):
            for name in burst:
                ward.finds(name, "48")
            await asyncio.sleep(0.03)
        await ward.until("all are in quarantine", lambda: ward.out_of_use() == set(names), 30)
        await ward.until("all of it is written down", lambda: all(ward.session(name) for name in names), 30)

    ward.run(story)
    tainted = [moment for moment, _, path in ward.writes if path in {f"/api/v1/nodes/{name}" for name in names}]
    reported = [moment for moment, method, path in ward.writes if (method, path) == ("POST", SESSIONS)]
    assert len(tainted) == len(reported) == len(names)
    assert max(tainted) <= min(reported)


@pytest.mark.slow
def test_many_nodes_are_emptied_by_looking_at_all_at_once() -> None:
    ward = VirtualWard()
    names = [f"n{number:03}" for number in range(80)]
    for name in names:
        ward.add_node(name)
        ward.add_pod(f"work-on-{name}", name)
    ward.add_node("sound")
    ward.add_pod("work-on-sound", "sound")
    looks: list[str] = []

    def heard(now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client == "controller" and request.method == "GET" and request.path.endswith("/pods"):
            looks.append(request.query.get("fieldSelector", ""))

    ward.cluster.trace.listeners.append(heard)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names:
            ward.finds(name)
        await ward.until("all are empty", lambda: not any(map(ward.pods, names)), 60)

    ward.run(story)
    assert ward.pods("sound") == {"work-on-sound"}
    assert not [look for look in looks if look.startswith("spec.nodeName=")]
    assert "spec.nodeName!=" in looks
