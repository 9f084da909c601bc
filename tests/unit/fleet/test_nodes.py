"""The model of a node that the parts of the fleet share."""

from __future__ import annotations

from muster.fleet.balloons.decide import use_of
from muster.fleet.balloons.snapshot import BalloonNode, NodeUse
from muster.fleet.nodes.node import FleetNode, read
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.struct import from_dict
from tests.unit.fleet.test_balloons import POOL

BODY = {
    "metadata": {
        "name": "n",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
        "labels": {"muster.dev/health": "ignore"},
    },
    "spec": {
        "unschedulable": True,
        "taints": [{"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}],
    },
    "status": {
        "allocatable": {"cpu": "not a quantity"},
        "conditions": [{"type": "Ready", "status": "False"}],
        "nodeInfo": {"bootID": "b"},
    },
}


def test_a_fleet_node_has_the_facts_of_its_node_object() -> None:
    """Amounts are not among them: reading a malformed one must not fail where no part asks for it."""
    assert read(FleetNode, from_dict(BODY, Node)) == FleetNode(
        name="n",
        uid="u",
        boot_id="b",
        ready=False,
        created_at=1767225600.0,
        labels={"muster.dev/health": "ignore"},
        taints=(Taint(key="muster.dev/quarantine", value="true", effect="NoSchedule"),),
        cordoned=True,
        leaving=True,
        ignored=True,
        quarantined=True,
    )


def test_a_node_that_reports_little_is_read() -> None:
    assert read(FleetNode, from_dict({"metadata": {"name": "n"}}, Node)) == FleetNode(name="n", ready=False)


def test_no_balloon_goes_to_a_node_that_is_being_deleted() -> None:
    leaving = BalloonNode(name="n", labels={"pool": "h100"}, leaving=True)
    assert use_of(POOL, {}, leaving) is NodeUse.CORDONED
