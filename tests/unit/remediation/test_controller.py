"""The controller in virtual time: what it writes, when it writes nothing, and how it is carried on."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from muster.embedded.apiserver.request import Request
from muster.fleet.remediation.evidence.mesh import KEY
from tests.unit.remediation.virtualward import OPEN, VirtualWard


def test_a_broken_node_is_emptied_rebooted_tested_and_given_back_and_then_nothing_is_written() -> None:
    ward = VirtualWard()
    ward.add_node("n0")
    ward.add_node("n1")
    ward.add_pod("work", "n0")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0")
        await ward.until("the machine has booted", lambda: ward.booted == ["n0"])
        assert ward.out_of_use() == {"n0"}
        assert not ward.pods("n0")
        conditions = {each["type"]: each["status"] for each in ward.node("n0")["status"]["conditions"]}
        assert conditions["muster.dev/HardwareFault"] == "True"
        await asyncio.sleep(5)
        assert ward.rung("n0") == "Reboot"
        ward.tests("n0")
        await ward.until("the node is back", lambda: ward.rung("n0") == "Released" and not ward.out_of_use())
        await asyncio.sleep(10)
        conditions = {each["type"]: each["status"] for each in ward.node("n0")["status"]["conditions"]}
        assert conditions["muster.dev/HardwareFault"] == "False"
        written = len(ward.writes)
        await asyncio.sleep(300)
        assert ward.writes[written:] == [], "at rest it is quiet"
        assert ward.booted == ["n0"]

    ward.run(story)


@pytest.mark.slow
def test_killed_at_each_step_it_is_carried_on_and_the_machine_boots_once() -> None:
    ward = VirtualWard()
    ward.add_node("n0")
    ward.add_pod("work", "n0")

    async def story() -> None:
        ward.finds("n0")
        kills, tested = 0, False
        while ward.rung("n0") != "Released" or ward.out_of_use():
            before = len(ward.writes)
            await ward.until("something is written", functools.partial(ward.has_written, before))
            await ward.kill()
            kills += 1
            if not tested and "'event': 'Booted'" in str(ward.session("n0")):
                tested = True
                await asyncio.sleep(1)
                ward.tests("n0")
            ward.start()
        assert kills >= 6
        assert ward.booted == ["n0"]

    ward.run(story)


def test_an_api_server_that_is_away_during_a_drain_is_waited_for() -> None:
    ward = VirtualWard()
    ward.add_node("n0")
    for number in range(3):
        ward.add_pod(f"work-{number}", "n0")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0")
        await ward.until("it is drained", lambda: ward.rung("n0") == "Drain")
        ward.way.away = True
        await asyncio.sleep(300)
        assert ward.rung("n0") == "Drain"
        ward.way.away = False
        await ward.until("the machine has booted", lambda: ward.booted == ["n0"])
        assert not ward.pods("n0")

    ward.run(story)


@pytest.mark.slow
def test_hundreds_of_nodes_are_in_quarantine_within_seconds_where_nothing_holds_them() -> None:
    ward = VirtualWard()
    names = [f"n{number:03}" for number in range(150)]
    for name in names:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names:
            ward.finds(name, "48")
        await ward.until("all are in quarantine", lambda: ward.out_of_use() == set(names), 30)

    ward.run(story)


@pytest.mark.slow
def test_the_breaker_holds_with_many_at_once_across_leaders() -> None:
    ward = VirtualWard("mode: act\nshared: {nodes: 0}\nbreaker: {share: 10%}\n")
    names = [f"n{number:02}" for number in range(40)]
    for name in names:
        ward.add_node(name)

    async def story() -> None:
        for name in names:
            ward.finds(name, "48")
        for _ in range(4):
            await asyncio.sleep(7)
            await ward.kill()
            ward.start()
        await asyncio.sleep(30)
        assert len(ward.out_of_use()) == 4
        written = len(ward.writes)
        await asyncio.sleep(120)
        assert len(ward.writes) == written, "what is held back is said once"

    ward.run(story)


def is_broken(ward: VirtualWard) -> bool:
    """Whether n0 has the condition of broken hardware."""
    conditions = ward.node("n0")["status"]["conditions"]
    return any(each["type"] == "muster.dev/HardwareFault" and each["status"] == "True" for each in conditions)


@pytest.mark.slow
def test_a_dead_node_is_emptied_and_half_a_cluster_that_is_cut_off_is_left_alone() -> None:
    ward = VirtualWard(OPEN)
    names = ward.add_renewed(8)
    ward.alive = {*names[1:]}
    ward.add_pod("rank", "n0", gang="job")
    ward.add_pod("other", "n4", gang="job")

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:4]:
            ward.finds(name, "unreached", "reach", "n0")
        for _ in range(3):  # it is only slow to answer: its Lease moves
            await asyncio.sleep(8)
            ward.renews("n0")
        await asyncio.sleep(40)
        assert not ward.out_of_use(), "the reports are older than the last renewal"
        for name in names[1:4]:  # as agents do while they do not reach it
            ward.finds(name, "unreached", "reach", "n0")
        await ward.until("it is out of use", lambda: ward.out_of_use() == {"n0"}, 30)
        await ward.until("its gang is evicted", lambda: not ward.pods("n0"), 30)

    ward.run(story)

    parted = VirtualWard(OPEN)
    for name in names:
        parted.add_node(name)
        parted.renews(name)

    async def apart() -> None:
        await asyncio.sleep(2)
        for number, name in enumerate(names):  # nodes on the other side reach no node here
            parted.finds(name, "unreached", "reach", names[(number + 4) % 8])
        await asyncio.sleep(120)
        assert not parted.out_of_use()

    parted.run(apart)


@pytest.mark.slow
def test_peers_outside_a_partition_that_probe_few_nodes_inside_it_find_no_death() -> None:
    """Health seeds 985118 and 990010: two peers outside reported two of the ten nodes inside."""
    ward = VirtualWard(OPEN)
    names = ward.add_renewed(12)

    async def outside_continues() -> None:
        for _ in range(12):
            await asyncio.sleep(10)
            for outside in names[10:]:
                ward.renews(outside)
                for inside in names[:2]:
                    ward.finds(outside, "unreached", "reach", inside)
        assert not ward.out_of_use()

    ward.run(outside_continues)


def test_node_that_is_replaced_while_leases_are_read_is_not_judged_by_the_one_before_it() -> None:
    """Health seed 990017."""
    ward = VirtualWard(OPEN)
    ward.way.leases_take_s = 3.0
    names = ward.add_renewed(8)
    ward.alive = {*names}
    reads: list[float] = []

    def heard(now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client == "controller" and request.method == "GET" and request.path.endswith("leases/n5"):
            reads.append(now)

    ward.cluster.trace.listeners.append(heard)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:4]:  # a suspect whose Lease is read again and again, and moves
            ward.finds(name, "unreached", "reach", "n5")
        await ward.until("Leases are read", lambda: bool(reads), 30)
        ward.finds("n0")
        seen = len(reads)
        await ward.until("the finding was judged", lambda: len(reads) > seen, 30)
        ward.call("DELETE", "/api/v1/nodes/n0")
        ward.add_node("n0")
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not ward.out_of_use()

    ward.run(story)


@pytest.mark.slow
def test_a_dead_node_is_dead_for_the_next_leader_too_until_its_lease_is_renewed() -> None:
    """Issue 11: when its Lease was renewed last is in the session's status."""
    ward = VirtualWard(OPEN.replace("1000", "0"))  # it stays in quarantine: nothing may be worked on
    names = ward.add_renewed(8)
    ward.alive = {*names[1:]}

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:4]:
            ward.finds(name, "unreached", "reach", "n0")
        await ward.until("it is said on the node", lambda: is_broken(ward), 60)
        await ward.kill()
        ward.start()
        await asyncio.sleep(300)  # by now the reports are too old to count
        assert is_broken(ward), "the next leader knows that it is dead"
        ward.renews("n0")
        await ward.until("it is alive", lambda: not is_broken(ward), 30)

    ward.run(story)


@pytest.mark.slow
def test_a_node_that_came_back_is_not_dead_when_it_loses_the_api_server_alone() -> None:
    """Issue 11: old reports of its peers still counted (seeds 930112 and 930176); so for each leader."""
    ward = VirtualWard(OPEN)
    names = ward.add_renewed(8)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:4]:  # it boots
            ward.finds(name, "unreached", "reach", "n0")
        await asyncio.sleep(10)
        ward.renews("n0")  # it is back, and never heard of again by the API server
        await asyncio.sleep(60)
        assert not ward.out_of_use()
        await ward.kill()
        ward.start()
        await asyncio.sleep(60)
        assert not ward.out_of_use()

    ward.run(story)


def test_a_gang_is_moved_once_a_spare_is_kept_for_it() -> None:
    ward = VirtualWard()
    for name in ("n0", "n1", "n2"):
        ward.add_node(name)
    ward.add_pod("rank", "n0", gang="job")
    ward.add_pod("alone", "n1")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0")
        kept: list[dict[str, str]] = []
        ward.handover.changed = lambda: kept.append(dict(ward.handover.kept))
        await ward.until("a spare is kept", lambda: bool(kept), 60)
        assert kept[0] == {"n2": "muster-system/job"}, "empty, as n1 is not"
        assert ward.handover.closed(lambda gang: True) == {"n2"}
        assert ward.handover.closed(lambda gang: False) == set()
        assert ward.pods("n0"), "others of its nodes may break as well: it leaves them together"
        await ward.until("it is empty", lambda: not ward.pods("n0"), 60)
        await ward.until("no gang waits for it", lambda: not ward.handover.kept, 60)
        assert "spare n2" in str(ward.session("n0"))

    ward.run(story)


def test_node_unreached_by_the_mesh_is_quarantined_and_a_switch_is_not() -> None:
    """Agents get their list from us, and what they say of each other comes back as whose fault it is."""
    ward = VirtualWard()
    names = [f"n{number}" for number in range(8)]
    for name in names:
        ward.add_node(name, rack="a" if name < "n4" else "b")

    async def story() -> None:
        await asyncio.sleep(2)
        reported = json.loads(ward.call("GET", "/api/v1/namespaces/muster-system/configmaps/muster-mesh")["data"][KEY])
        assert [each["name"] for each in reported] == names
        assert reported[0]["domains"] == ["a"]
        for name in names[1:]:
            ward.finds(name, "unreached", "reach", "n0", timed=True)
        await ward.until("it is out of use", lambda: ward.out_of_use() == {"n0"}, 60)
        await ward.until("it is written why", lambda: "reach/node" in str(ward.session("n0")), 60)

    ward.run(story)


@pytest.mark.slow
def test_a_node_that_was_not_reached_for_a_while_is_let_back_though_records_go_on_telling_of_it() -> None:
    """What an agent saw stays in its record for weeks, and the record is rewritten with every heartbeat."""
    ward = VirtualWard()
    names = [f"n{number}" for number in range(8)]
    for name in names:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:]:
            ward.finds(name, "unreached", "reach", "n0", timed=True)
        await ward.until("it is out of use", lambda: ward.out_of_use() == {"n0"}, 60)
        for _ in range(2):
            await asyncio.sleep(301)
            for name in names[1:]:
                ward.heartbeat(name)
        await asyncio.sleep(10)
        ward.tests("n0")
        await ward.until("it is let back", lambda: not ward.out_of_use(), 60)

    ward.run(story)


@pytest.mark.slow
def test_a_node_that_is_reached_again_is_back_after_its_test_though_records_still_tell_of_it() -> None:
    ward = VirtualWard()
    names = [f"n{number}" for number in range(8)]
    for name in names:
        ward.add_node(name)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in names[1:]:
            ward.finds(name, "unreached", "reach", "n0", timed=True)
        await ward.until("it is out of use", lambda: ward.out_of_use() == {"n0"}, 60)
        await asyncio.sleep(20)
        ward.tests("n0")
        await ward.until("it is back", lambda: ward.rung("n0") == "Released" and not ward.out_of_use(), 20)
        for _ in range(60):
            await asyncio.sleep(5)
            assert not ward.out_of_use()

    ward.run(story)


def test_a_switch_whose_nodes_are_missed_one_after_another_takes_none_of_them_out_of_use() -> None:
    ward = VirtualWard()
    racks = {rack: [f"{rack}{number}" for number in range(3)] for rack in "abc"}
    for rack, names in racks.items():
        for name in names:
            ward.add_node(name, rack=rack)

    async def story() -> None:
        await asyncio.sleep(2)
        for name in racks["a"]:
            ward.finds(name, "fine", "reach", timed=True)
        ward.finds("c2", "unreached", "reach", "c0", timed=True)  # as far as anybody knows it is c0 alone
        ward.finds("c1", "unreached", "reach", "c0", timed=True)
        await asyncio.sleep(15)
        for number in range(3):
            ward.finds(f"b{number}", "unreached", "reach", f"c{number}", timed=True)
            ward.finds(f"c{number}", "unreached", "reach", f"a{number}", timed=True)
        await ward.until("all of them hear of the switch", lambda: all(ward.rung(n) == "Condition" for n in racks["c"]))
        await asyncio.sleep(120)
        assert not ward.out_of_use()
        assert "reach/switch" in str(ward.session("c0"))

    ward.run(story)


def test_taint_set_by_others_before_ours_outlives_ours() -> None:
    ward = VirtualWard()
    ward.add_node("n0")
    mine = {"key": "muster.dev/quarantine", "value": "keep-off", "effect": "NoSchedule"}
    ward.call("PATCH", "/api/v1/nodes/n0", {"spec": {"taints": [mine]}})

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0", "48")
        await ward.until("it is in quarantine", lambda: ward.rung("n0") == "Quarantine")
        await asyncio.sleep(5)
        ward.tests("n0")
        await ward.until("it is released", lambda: ward.rung("n0") == "Released")
        await asyncio.sleep(5)
        assert mine in ward.node("n0")["spec"]["taints"]
        assert "muster.dev/quarantine-record" not in ward.node("n0")["metadata"].get("annotations", {})

    ward.run(story)


def test_stages_are_measured() -> None:
    ward = VirtualWard()
    ward.add_node("n0")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0")
        await ward.until("booted", lambda: "'event': 'Booted'" in str(ward.session("n0")))
        await asyncio.sleep(1)
        ward.tests("n0")
        await ward.until("the node is back", lambda: not ward.out_of_use())

    ward.run(story)
    counts = {
        sample.labels["stage"]: sample.value
        for family in ward.registry.collect()
        for sample in family.samples
        if sample.name == "muster_remediation_stage_seconds_count"
    }
    assert counts == {"detected": 1, "quarantined": 1, "drained": 1, "repaired": 1, "released": 1}
