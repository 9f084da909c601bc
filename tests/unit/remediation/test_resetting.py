"""GPUs are reset where nothing holds them: not while the node's own test runs, which is not a pod that is drained."""

from __future__ import annotations

import asyncio

from muster.api.names import LABEL_PREFLIGHT
from tests.unit.remediation.virtualward import OPEN, WORKER, VirtualWard

POLICY = """
version: 1
revision: test
extends: default
codes: {xid: {140: {action: reset-gpu, test: 1}}}
"""


def was_reset(ward: VirtualWard) -> bool:
    """Whether the node's session says so."""
    return "'event': 'Reset'" in str(ward.session("n0"))


def test_gpus_are_not_reset_while_a_test_holds_them() -> None:
    ward = VirtualWard(OPEN, POLICY)
    ward.add_node("n0")
    spec = {"nodeName": "n0", "containers": [{"name": "test", "image": "i"}], "terminationGracePeriodSeconds": 0}
    ward.call("POST", f"{WORKER}/pods", {"metadata": {"name": "test", "labels": {LABEL_PREFLIGHT: "1"}}, "spec": spec})

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0", "140")
        await ward.until("its GPUs are to be reset", lambda: ward.rung("n0") == "ResetGPU")
        await asyncio.sleep(30)
        assert not was_reset(ward)
        ward.call("DELETE", f"{WORKER}/pods/test")
        await ward.until("they are reset", lambda: was_reset(ward), 30)

    ward.run(story)
