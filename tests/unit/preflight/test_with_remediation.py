"""Preflight and the ladder together, in virtual time: what goes into quarantine comes out through a test."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import HEALTH_CONFIG_MAP, remediation_name
from muster.fleet.preflight.config import CONFIG_KEY as CONFIG_KEY_PREFLIGHT
from muster.fleet.preflight.config import CONFIG_MAP
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.controller import RemediationController
from tests.unit.preflight.test_controller import NAMESPACE, World

MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SESSIONS = "/apis/muster.dev/v1alpha1/noderemediations"


class Ward(World):
    """Beside the controller of preflight runs that of remediation, which may act."""

    def __init__(self) -> None:
        super().__init__()
        text = "mode: act\nbreaker: {nodes: 10}\nquarantined: {all: 10, pool: 10, team: 10}\n"
        self.call("POST", MAPS, {"metadata": {"name": HEALTH_CONFIG_MAP}, "data": {CONFIG_KEY: text}})
        self.remediation = RemediationController(
            self.cluster.client("remediation"),
            NAMESPACE,
            clock=lambda: self.loop.now,
            rng=random.Random(3),
            registry=CollectorRegistry(),
        )

    def others(self) -> list[Any]:
        return [self.remediation.run()]

    def uid(self, name: str) -> str:
        return str(self.call("GET", f"/api/v1/nodes/{name}")["metadata"]["uid"])

    def ask(self, name: str, action: str) -> None:
        """As `muster nodes quarantine` and `release` do."""
        uid = self.uid(name)
        request = {"action": action, "by": "pat", "time": self.stamp, "reason": "a look at it"}
        session = remediation_name(name, uid)
        if any(each["metadata"]["name"] == session for each in self.call("GET", SESSIONS)["items"]):
            self.call("PATCH", f"{SESSIONS}/{session}", {"spec": {"request": request}})
        else:
            spec = {"node": name, "nodeUID": uid, "request": request}
            self.call("POST", SESSIONS, {"metadata": {"name": session}, "spec": spec})

    def phase(self, name: str) -> str:
        found = [each for each in self.call("GET", SESSIONS)["items"] if each["spec"]["node"] == name]
        return str(found[0]["status"].get("state", "Open")) if found else ""

    def taints(self, name: str) -> set[str]:
        return {taint["key"] for taint in self.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", ())}


@pytest.mark.slow
def test_manual_quarantine_is_tested_after_its_release_and_then_gets_pods() -> None:
    ward = Ward()

    async def story() -> None:
        ward.add_node("a")
        await asyncio.sleep(40)
        ward.ask("a", "Quarantine")
        await asyncio.sleep(60)
        assert ward.taints("a") == {"muster.dev/quarantine"}
        assert ward.tested == ["a"], "no test was requested yet"
        ward.add_pod("work")
        ward.ask("a", "Release")
        await asyncio.sleep(10)
        assert ward.node_of("work") == ""
        await asyncio.sleep(60)
        assert ward.tested == ["a", "a"]
        assert ward.phase("a") == "Released"
        assert ward.taints("a") == set()
        assert ward.node_of("work") == "a"

    ward.run(story)


@pytest.mark.slow
def test_a_node_that_fails_its_test_goes_up_the_ladder_and_comes_back_with_a_pass() -> None:
    ward = Ward()
    ward.verdicts["a"] = False

    async def story() -> None:
        ward.add_node("a")
        await asyncio.sleep(60)
        assert ward.records()["a"]["passed"] is False
        assert "muster.dev/preflight" in ward.taints("a")
        ward.add_pod("work")
        await asyncio.sleep(60)
        assert ward.node_of("work") == ""
        ward.verdicts["a"] = True
        for _ in range(60):
            await asyncio.sleep(60)
            if ward.node_of("work"):
                break
        assert ward.node_of("work") == "a", (ward.taints("a"), ward.call("GET", SESSIONS)["items"])
        assert ward.taints("a") == set()

    ward.run(story)


def test_the_policy_names_the_level_of_the_test_that_lets_a_node_back() -> None:
    """Xid 95 has the GPU reset, and asks for a test of level 3."""
    ward = Ward()

    async def story() -> None:
        ward.add_node("a")
        await asyncio.sleep(40)
        assert ward.records()["a"]["level"] == 1
        path = "/apis/muster.dev/v1alpha1/nodehealths"
        ward.call("POST", path, {"metadata": {"name": "a"}})
        finding = {"check": "xid", "component": "0000:01:00.0", "code": "95", "firstTime": ward.stamp}
        identity = {"nodeUID": ward.uid("a"), "bootID": "a-boot-1"}
        status = {**identity, "time": ward.stamp, "findings": [{**finding, "lastTime": ward.stamp}]}
        ward.call("PATCH", f"{path}/a/status", {"status": status})
        for _ in range(60):
            await asyncio.sleep(20)
            if ward.phase("a") == "Released":
                break
        assert ward.phase("a") == "Released", ward.call("GET", SESSIONS)["items"]
        assert ward.records()["a"]["level"] == 3
        assert 2 not in ward.levels

    ward.run(story)


def test_another_driver_does_not_bring_back_findings_that_a_test_cleared() -> None:
    """Issue 11.34: the record went with the driver, and a healthy machine was replaced for an old finding."""
    ward = Ward()
    path = "/apis/muster.dev/v1alpha1/nodehealths"
    ward.call("PATCH", f"{MAPS}/{CONFIG_MAP}", {"data": {CONFIG_KEY_PREFLIGHT: "image: none\nlevels: {boot: 3}\n"}})

    def report(driver: str, *findings: dict[str, str]) -> None:
        status = {"nodeUID": ward.uid("a"), "bootID": "a-boot-1", "driver": driver, "time": ward.stamp}
        ward.call("PATCH", f"{path}/a/status", {"status": {**status, "findings": list(findings)}})

    async def story() -> None:
        ward.add_node("a")
        ward.call("POST", path, {"metadata": {"name": "a"}})
        report("550")
        seen = {"firstTime": ward.stamp, "lastTime": ward.stamp}
        await asyncio.sleep(60)
        assert ward.records()["a"]["passed"] is True
        old = {"check": "xid", "component": "0000:01:00.0", "code": "79", **seen}
        report("550", old)
        await asyncio.sleep(60)
        report("570", old)
        await asyncio.sleep(10)
        assert "revokedTime" in ward.records()["a"]
        assert ward.taints("a") == {"muster.dev/preflight"}
        await asyncio.sleep(60)
        assert ward.tested == ["a", "a"]
        assert "revokedTime" not in ward.records()["a"]
        assert ward.taints("a") == set()
        assert ward.phase("a") == "Released"
        assert "history" not in ward.call("GET", SESSIONS)["items"][0]["status"]

    ward.run(story)


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [False, True], ids=["failed later", "record deleted"])
def test_findings_stay_cleared_when_the_record_of_the_pass_is_replaced_or_deleted(deleted: bool) -> None:
    """Issue 11: a failed test, or a person, took the pass away, and an old finding had the machine rebooted."""
    ward = Ward()
    path = "/apis/muster.dev/v1alpha1"
    ward.call("PATCH", f"{MAPS}/{CONFIG_MAP}", {"data": {CONFIG_KEY_PREFLIGHT: "image: none\nlevels: {boot: 3}\n"}})

    async def story() -> None:
        ward.add_node("a")
        ward.call("POST", f"{path}/nodehealths", {"metadata": {"name": "a"}})
        seen = {"firstTime": ward.stamp, "lastTime": ward.stamp}
        await asyncio.sleep(60)
        assert ward.records()["a"]["passed"] is True
        status = {"nodeUID": ward.uid("a"), "bootID": "a-boot-1", "time": ward.stamp}
        old = {"check": "xid", "component": "0000:01:00.0", "code": "79", **seen}
        ward.call("PATCH", f"{path}/nodehealths/a/status", {"status": {**status, "findings": [old]}})
        await asyncio.sleep(10)
        (session,) = ward.call("GET", SESSIONS)["items"]
        assert [each["level"] for each in session["status"]["passes"]] == [3]
        written = session["metadata"]["resourceVersion"]
        await asyncio.sleep(600)
        assert ward.call("GET", SESSIONS)["items"][0]["metadata"]["resourceVersion"] == written, "it is written once"
        if deleted:
            ward.call("DELETE", f"{path}/preflights/a")
        else:  # of another boot: that it failed is not evidence
            failed = {"passed": False, "bootID": "another", "time": ward.stamp}
            ward.call("PATCH", f"{path}/preflights/a", {"spec": failed})
        await asyncio.sleep(5)
        assert ward.phase("a") == "Released"
        assert "muster.dev/quarantine" not in ward.taints("a")

    ward.run(story)


def test_the_record_of_a_failed_test_names_the_pass_before_it() -> None:
    """Issue 11: so what that pass cleared stays cleared, whichever controller reads the record first."""
    ward = Ward()

    async def story() -> None:
        ward.add_node("a")
        await asyncio.sleep(60)
        passed = ward.records()["a"]
        assert passed["passed"] is True
        ward.verdicts["a"] = False
        ward.ask("a", "Quarantine")
        await asyncio.sleep(30)
        ward.ask("a", "Release")
        await asyncio.sleep(60)
        failed = ward.records()["a"]
        assert failed["passed"] is False
        assert failed["lastPass"] == {"level": passed["level"], "time": passed["time"]}

    ward.run(story)


def test_findings_that_are_added_to_a_session_raise_the_level_of_its_test() -> None:
    """Issue 11: a node was tested for its first cause alone, and then replaced though it was sound (seed 970122)."""
    ward = Ward()
    path = "/apis/muster.dev/v1alpha1/nodehealths"

    async def story() -> None:
        ward.add_node("a")
        await asyncio.sleep(40)
        ward.ask("a", "Quarantine")
        await asyncio.sleep(5)
        ward.call("POST", path, {"metadata": {"name": "a"}})
        seen = {"firstTime": ward.stamp, "lastTime": ward.stamp}
        found = {"check": "xid", "component": "0000:01:00.0", "code": "48", **seen}
        status = {"nodeUID": ward.uid("a"), "bootID": "a-boot-1", "time": ward.stamp, "findings": [found]}
        ward.call("PATCH", f"{path}/a/status", {"status": status})
        await asyncio.sleep(5)
        assert ward.call("GET", SESSIONS)["items"][0]["status"]["testLevel"] == 3
        ward.ask("a", "Release")
        await asyncio.sleep(120)
        assert ward.records()["a"]["level"] == 3
        assert 2 not in ward.levels, "not one of the usual level first"
        assert ward.phase("a") == "Released"

    ward.run(story)
