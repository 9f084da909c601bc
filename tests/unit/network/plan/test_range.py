"""Ranges: the standard library gives the same answers."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.network.plan.range import ALL, Family, Range, RangeError, aggregate, parse_range, subtract
from muster.network.plan.space import Space

SMALL = st.builds(
    lambda first, prefix: ipaddress.ip_network((0x0A000000 + first, prefix), strict=False),
    st.integers(0, 255),
    st.integers(24, 32),
)
LONG = st.builds(
    lambda first, prefix: ipaddress.ip_network((first, prefix), strict=False),
    st.integers(0, 2**128 - 1),
    st.integers(0, 128),
)
WHOLE = parse_range("10.0.0.0/24")


def hosts(ranges: list[Range]) -> list[int]:
    return [address for each in ranges for address in range(each.first, each.end)]


@given(st.one_of(SMALL, LONG))
def test_text_is_parsed_and_written_back(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    assert str(parse_range(str(network))) == str(network)
    assert parse_range(str(network)).size == network.num_addresses


@given(SMALL, SMALL)
def test_containment_and_overlap_agree_with_the_standard_library(
    first: ipaddress.IPv4Network, second: ipaddress.IPv4Network
) -> None:
    ours, theirs = parse_range(str(first)), parse_range(str(second))
    assert ours.contains(theirs) == second.subnet_of(first)
    assert ours.overlaps(theirs) == first.overlaps(second)


@given(st.lists(SMALL, max_size=8))
def test_aggregation_is_minimal(given_: list[ipaddress.IPv4Network]) -> None:
    wanted = [str(each) for each in ipaddress.collapse_addresses(given_)]
    assert [str(each) for each in aggregate(parse_range(str(each)) for each in given_)] == wanted


@given(st.lists(SMALL, max_size=6))
def test_differences_hold_exactly_the_other_addresses(taken: list[ipaddress.IPv4Network]) -> None:
    parts = [parse_range(str(each)) for each in taken]
    left = subtract(WHOLE, parts)
    gone = set(hosts(parts))
    assert hosts(left) == [address for address in range(WHOLE.first, WHOLE.end) if address not in gone]
    assert aggregate(left) == left


@given(st.lists(SMALL, max_size=4), st.lists(st.integers(25, 32), max_size=12))
def test_free_space_never_gives_an_address_twice(taken: list[ipaddress.IPv4Network], prefixes: list[int]) -> None:
    parts = [parse_range(str(each)) for each in taken]
    space = Space(Family.V4, [WHOLE], parts)
    before = space.addresses
    given_ = [found for prefix in prefixes if (found := space.give(prefix)) is not None]
    assert len(set(hosts(given_))) == sum(each.size for each in given_) == before - space.addresses
    assert not any(each.overlaps(part) for each in given_ for part in parts)


def test_the_smallest_free_block_is_used_so_that_large_ones_stay() -> None:
    space = Space(Family.V4, [parse_range("10.0.0.0/16")], [parse_range("10.0.0.0/25"), parse_range("10.0.1.0/24")])
    assert str(space.give(26)) == "10.0.0.128/26"
    assert str(space.largest) == "10.0.128.0/17"


@given(st.lists(SMALL, max_size=4), SMALL)
def test_taking_a_range_removes_exactly_its_addresses(
    taken: list[ipaddress.IPv4Network], wanted: ipaddress.IPv4Network
) -> None:
    space = Space(Family.V4, [WHOLE], [parse_range(str(each)) for each in taken])
    free = set(hosts([WHOLE])) - set(hosts([parse_range(str(each)) for each in taken]))
    range_ = parse_range(str(wanted))
    assert space.is_free(range_) == (set(hosts([range_])) <= free)
    space.take(range_)
    assert space.addresses == len(free - set(hosts([range_])))
    assert all(space.is_free(Range(Family.V4, each, 32)) for each in free - set(hosts([range_])))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("fd00::1/48", "write fd00::/48"),
        ("10.0.0.0/33", "such as"),
        ("", "such as"),
    ],
)
def test_text_that_is_not_a_range_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(RangeError, match=advice):
        parse_range(text)


def test_families_never_overlap() -> None:
    assert not ALL[Family.V4].overlaps(ALL[Family.V6])
    assert not ALL[Family.V6].contains(parse_range("10.0.0.0/8"))
