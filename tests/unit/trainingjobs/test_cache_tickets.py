"""What a node gets to use the caches of its gang: fixed with the attempt, signed, and renewed before it expires."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from muster.api.cache_ticket import LIFETIME_S, PeerList, Ticket, TicketSigner, TicketVerifier, gang_key, key_digest
from muster.api.names import LABEL_ZONE
from muster.api.run_record import CopyPartners
from muster.kube.objects.node import Node, NodeAddress
from muster.trainingjobs.plan import Directive, Host, RecordEvent, RunPlan
from muster.trainingjobs.rendezvous.cache_tickets import GROUP_NODES, CacheTickets
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.secrets import attempt_key
from muster.trainingjobs.snapshot import Member
from tests.unit.trainingjobs.world import T0, World, make_job

SECRET = b"s" * 32
VERIFIER = TicketVerifier(TicketSigner(SECRET).public_key)


def plan_of(count: int, partners: CopyPartners | None = None, without: frozenset[int] = frozenset()) -> RunPlan:
    hosts = (
        Host(number, f"p{number}", f"10.0.0.{number}", 1000, "" if number in without else f"10.1.{number}.1:7443")
        for number in range(count)
    )
    return RunPlan(
        launcher="mpi",
        command=("train",),
        mpi_args=(),
        ranks_per_node=1,
        hosts=tuple(hosts),
        master_address="10.0.0.0",
        master_port=20_000,
        checkpoint=None,
        partners=partners,
    )


def part_of(plan: RunPlan, rank: int, expires: int = 0, now: float = T0) -> dict[str, Any]:
    part = CacheTickets(SECRET, lambda: now).part("team-a/train", "u-1", 2, plan, rank, expires)
    assert part is not None
    return dict(part)


def opened(part: dict[str, Any], now: float = T0) -> tuple[Ticket, PeerList]:
    """Read a part as a cache does, from its JSON."""
    sent = msgspec.json.decode(msgspec.json.encode(part))
    ticket, peers = VERIFIER.verify(sent["ticket"], now), msgspec.convert(sent["peers"], PeerList)
    assert ticket.peers == peers.digest()
    assert ticket.key == key_digest(sent["key"])
    return ticket, peers


def test_ticket_states_job_attempt_and_slot() -> None:
    part = part_of(plan_of(3), 1)
    ticket, peers = opened(part)
    assert (ticket.uid, ticket.namespace, ticket.job, ticket.attempt, ticket.slot) == ("u-1", "team-a", "train", 2, 1)
    assert ticket.expires == part["expires"] == T0 + LIFETIME_S
    assert [peer.slot for peer in peers.group] == [0, 1, 2]
    assert part["key"] == gang_key(attempt_key(SECRET, "u-1", 2))


def test_group_has_at_most_256_nodes_by_node_rank() -> None:
    plan = plan_of(600)
    groups = [[peer.slot for peer in opened(part_of(plan, rank))[1].group] for rank in (0, 255, 256, 599)]
    assert groups == [list(range(256)), list(range(256)), list(range(256, 512)), list(range(512, 600))]
    assert GROUP_NODES == 256


def test_partner_and_near_nodes_may_be_in_another_group() -> None:
    _, peers = opened(part_of(plan_of(600, CopyPartners(offset=300)), 255))
    assert peers.partner is not None
    assert peers.partner.slot == 555
    assert {peer.slot for peer in peers.near} == {553, 554, 556, 557, 256, 257}


def test_node_without_a_cache_gets_no_part_and_is_in_no_group() -> None:
    plan = plan_of(3, CopyPartners(offset=1), without=frozenset({1}))
    assert CacheTickets(SECRET, lambda: T0).part("ns/job", "u-1", 2, plan, 1, 0) is None
    _, peers = opened(part_of(plan, 0))
    assert [peer.slot for peer in peers.group] == [0, 2]
    assert peers.partner is None


def test_new_attempt_has_new_groups() -> None:
    tickets = CacheTickets(SECRET, lambda: T0)
    for plan, size in ((plan_of(3), 3), (plan_of(2), 2)):
        part = tickets.part("ns/job", "u-1", 2, plan, 0, 0)
        assert part is not None
        assert len(opened(dict(part))[1].group) == size


@pytest.mark.parametrize(("left_h", "renewed"), [(0, True), (11, True), (13, False), (24, False)])
async def test_ticket_is_renewed_with_the_next_poll_when_half_of_its_time_is_over(left_h: int, renewed: bool) -> None:
    tickets = CacheTickets(SECRET, lambda: T0)
    members = Members(SECRET, lambda key: None, lambda: T0, tickets=tickets.part)
    members.direct("u-1", "ns/job", Directive(attempt=2, desired="run", run=plan_of(2), slots=("p0", "p1")))
    said = Member(pod_uid="p0", state="running", attempt=2, cache_expires=int(T0 + left_h * 3600))
    answer = await members.poll("u-1", "ns/job", said, -1)
    assert ("cache" in answer["run"]) is renewed


async def test_ticket_of_the_attempt_before_does_not_count() -> None:
    members = Members(SECRET, lambda key: None, lambda: T0, tickets=CacheTickets(SECRET, lambda: T0).part)
    members.direct("u-1", "ns/job", Directive(attempt=2, desired="run", run=plan_of(2), slots=("p0", "p1")))
    said = Member(pod_uid="p0", state="stopping", attempt=1, cache_expires=int(T0 + LIFETIME_S))
    assert "cache" in (await members.poll("u-1", "ns/job", said, -1))["run"]


class CacheWorld(World):
    """Nodes with caches, in two zones."""

    def __init__(self, nodes: int, foreign: str = "", zones: str = "ab", **spec: Any) -> None:
        super().__init__(make_job(nodes, **spec), nodes=nodes)
        self.foreign = foreign
        for number, name in enumerate(list(self.nodes)):
            self.nodes[name] = in_zone(self.nodes[name], zones[number % len(zones)], f"10.1.0.{number}")

    def announced(self, pod: Any) -> Member:
        number = int(pod.spec.node_name.removeprefix("n"))
        said = self.foreign if self.foreign and number == 0 else f"10.1.0.{number}:7443"
        return replace(super().announced(pod), cache_address=said)


def in_zone(node: Node, zone: str, address: str) -> Node:
    addresses = (NodeAddress("InternalIP", address),)
    return replace(
        node,
        metadata=replace(node.metadata, labels={LABEL_ZONE: zone}),
        status=replace(node.status, addresses=addresses),
    )


def run_of(world: World) -> RunPlan:
    assert world.directive is not None
    assert world.directive.run is not None
    return world.directive.run


def test_partners_are_in_the_record_and_outside_the_zone() -> None:
    world = CacheWorld(4).started()
    assert world.status.run is not None
    assert world.status.run.partners == CopyPartners(offset=2, outside="Zone")
    assert run_of(world).partners == world.status.run.partners


def test_new_leader_uses_the_recorded_partners_although_labels_changed() -> None:
    world = CacheWorld(4).started()
    before = run_of(world)
    for number, name in enumerate(list(world.nodes)):
        world.nodes[name] = in_zone(world.nodes[name], "c", f"10.1.0.{number}")
    world.restart_controller()
    world.until("Running")
    world.step()
    world.control()
    assert run_of(world) == before


def test_address_of_another_host_does_not_count() -> None:
    """Issue 14, trust: a supervisor runs in the user's image, and may report any address."""
    world = CacheWorld(4, foreign="169.254.169.254:80").started()
    assert sorted(host.cache_address for host in run_of(world).hosts) == [
        "",
        *(f"10.1.0.{number}:7443" for number in (1, 2, 3)),
    ]


@pytest.mark.parametrize("address", ["10.1.0.0", "10.1.0.0:0", "10.1.0.0:99999", "10.1.0.0:x", ":7443", "-", "::"])
def test_malformed_address_does_not_count(address: str) -> None:
    world = CacheWorld(2, foreign=address).started()
    assert [host.cache_address for host in run_of(world).hosts if host.slot == 0] == [""]
    assert world.status.run is not None
    assert world.status.run.partners is None


def warnings(world: World) -> list[str]:
    return [event.message for event in world.actions(RecordEvent) if event.reason == "CopiesInOneDomain"]


def test_copies_that_stay_in_one_zone_are_reported_once() -> None:
    world = CacheWorld(4, zones="a", checkpoint={"path": "s3://bucket/ckpt"}).started()
    assert len(warnings(world)) == 1
    assert warnings(world)[0].startswith("4 of 4 nodes have their partner")
    world.exit_rank(0, 1)
    world.until("Restarting")
    world.until("Running")
    assert world.status.attempt == 2
    assert len(warnings(world)) == 1


@pytest.mark.parametrize("spec", [{}, {"checkpoint": {"path": "/ckpt"}}])
def test_job_without_checkpoints_in_an_object_store_is_not_warned(spec: dict[str, Any]) -> None:
    assert warnings(CacheWorld(4, zones="a", **spec).started()) == []


def test_nodes_without_labels_are_not_reported() -> None:
    """A user of an embedded cluster cannot act on it."""
    world = CacheWorld(4, zones=" ", checkpoint={"path": "s3://bucket/ckpt"})
    for name, node in world.nodes.items():
        world.nodes[name] = replace(node, metadata=replace(node.metadata, labels={}))
    world.started()
    assert warnings(world) == []
    assert world.status.run is not None
    assert world.status.run.partners is not None
    assert world.status.run.partners.same_domain == 4


def test_copies_in_another_zone_are_not_reported() -> None:
    assert warnings(CacheWorld(4, checkpoint={"path": "s3://bucket/ckpt"}).started()) == []
