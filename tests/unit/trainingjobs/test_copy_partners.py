"""Partners for copies of checkpoint shards: another node always, outside the failure domain if that is possible."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.run_record import SWAPS_MAX
from muster.trainingjobs.attempts.copy_partners import Domain, choose, near, partner_of


def _domains(*sizes, racks=1):
    """Zones of these sizes in rank order, each with so many racks."""
    return [
        Domain(f"z{zone}", f"z{zone}r{place * racks // size}")
        for zone, size in enumerate(sizes)
        for place in range(size)
    ]


def _pairs(domains, partners):
    return [(domains[rank], domains[partner_of(partners, rank, len(domains))]) for rank in range(len(domains))]


def test_single_node_has_no_partner():
    assert choose(_domains(1)) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "r1", "r2"])), min_size=2, max_size=40
    )
)
def test_property_each_node_keeps_the_copies_of_exactly_one_other(places):
    domains = [Domain(*place) for place in places]
    partners = choose(domains)
    found = [partner_of(partners, rank, len(domains)) for rank in range(len(domains))]
    assert sorted(found) == list(range(len(domains)))
    assert all(partner != rank for rank, partner in enumerate(found))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=8))
def test_property_partners_are_in_other_zones_unless_one_zone_has_more_than_half(sizes):
    domains = _domains(*sizes)
    partners = choose(domains)
    if 2 * max(sizes) <= sum(sizes):
        assert all(one.zone != other.zone for one, other in _pairs(domains, partners))
        assert (partners.outside, partners.same_domain) == ("Zone", 0)
    else:
        assert partners.same_domain > 0


def test_one_zone_uses_racks():
    domains = _domains(12, racks=3)
    partners = choose(domains)
    assert all(one.rack != other.rack for one, other in _pairs(domains, partners))
    assert (partners.outside, partners.same_domain) == ("Rack", 0)


def test_nodes_without_labels_have_another_node_and_that_is_reported():
    partners = choose([Domain("", "")] * 5)
    assert (partners.outside, partners.same_domain) == ("Node", 5)


def test_order_that_mixes_domains_needs_few_exchanges():
    """The record falls back to slot order if the ordered one would be too long."""
    rng = random.Random(4)
    domains = [Domain("z", f"r{rng.randrange(200)}") for _ in range(7500)]
    partners = choose(domains)
    assert partners.same_domain == 0
    assert all(one.rack != other.rack for one, other in _pairs(domains, partners))
    assert len(partners.swaps) <= 2 * SWAPS_MAX


def test_record_of_7500_nodes_is_small():
    rng = random.Random(4)
    partners = choose([Domain("z", f"r{rng.randrange(40)}") for _ in range(7500)])
    assert len(msgspec.json.encode(partners)) < 1200


def test_replaced_node_moves_the_offset_by_one_at_most():
    before, after = choose(_domains(8, 8, 8)), choose(_domains(7, 9, 8))
    assert (before.offset, after.offset) == (8, 9)
    assert before.outside == after.outside == "Zone"


def test_near_ranks_contain_both_nodes_of_a_shard_after_ranks_moved_by_two():
    partners = choose(_domains(10, 10))
    holders = {7, partner_of(partners, 7, 20)}
    for rank in (5, 6, 8, 9):
        known = {*near(partners, rank, 20), partner_of(partners, rank, 20)}
        assert holders <= known
    assert not {7, partner_of(partners, 7, 20)} & set(near(partners, 7, 20))


@pytest.mark.parametrize("nodes", [2, 3])
def test_near_ranks_of_tiny_jobs_are_other_nodes(nodes):
    partners = choose([Domain("", "")] * nodes)
    assert len(near(partners, 0, nodes)) == nodes - 2


def test_domain_with_nearly_all_nodes_costs_no_long_search():
    """Hardly any exchange helps then. Without a limit, each of 7,000 nodes would be compared with all others."""
    domains = [Domain("z", "a" if number < 7000 else "b") for number in range(7500)]
    partners = choose(domains)
    assert partners.same_domain >= 6000
    assert partners.outside == "Node"
