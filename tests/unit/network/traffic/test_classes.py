"""Classes of peers: the longest prefix wins, and ranges agree with it."""

from __future__ import annotations

import ipaddress
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.network.traffic.classes import CLASSES_MAX, ClassError, Classes


@pytest.mark.parametrize(
    ("address", "cls"),
    [
        ("10.1.2.3", "internal"),
        ("100.64.0.1", "internal"),
        ("169.254.169.254", "internal"),
        ("fd00::1", "internal"),
        ("fe80::1", "internal"),
        ("ff02::1", "internal"),
        ("8.8.8.8", "internet"),
        ("2001:db8::1", "internet"),
        ("::ffff:10.0.0.1", "internal"),
        ("::ffff:8.8.8.8", "internet"),
    ],
)
def test_default_classes(address: str, cls: str) -> None:
    assert Classes().of(address) == cls


def test_longest_prefix_wins_inside_and_outside_of_internal() -> None:
    """A partner's network inside of 10/8, a part of it that is ours again, and a public list."""
    classes = Classes(
        ["10.0.0.0/8", "10.9.8.0/24"], {"partner": ["10.9.0.0/16"], "object-store": ["203.0.113.0/24", "2001:db8::/32"]}
    )
    assert classes.names == ("internal", "object-store", "partner", "internet")
    found = {each: classes.of(each) for each in ("10.8.0.1", "10.9.1.1", "10.9.8.1", "203.0.113.9", "2001:db8::9")}
    assert list(found.values()) == ["internal", "partner", "internal", "object-store", "object-store"]
    assert classes.of("192.168.0.1") == "internet"  # the private prefixes were replaced


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"Store": []}, "class 'Store': use a DNS label"),
        ({"internet": ["1.0.0.0/8"]}, "other than inner, internal, internet, ipv6, local, outer, rdma"),
        ({"rdma": ["1.0.0.0/8"]}, "other than .* rdma"),
        ({"store": ["::ffff:10.0.0.0/104"]}, "IPv4 in IPv6, which no packet has; write it as 10.0.0.0/8"),
        ({"a" * 33: []}, "at most 32 characters"),
        ({"store": ["203.0.113.1/24"]}, "class store: prefix '203.0.113.1/24': .* write it as"),
        ({"store": ["all"]}, "class store: prefix 'all'"),
        ({"one": ["1.0.0.0/8"], "two": ["1.0.0.0/8"]}, "prefix 1.0.0.0/8 is in one and in two"),
        ({f"c{number}": [] for number in range(CLASSES_MAX)}, "18 classes: at most 16"),
    ],
)
def test_unusable_classes_say_what_to_change(lists: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ClassError, match=message):
        Classes(lists=lists)


def prefixes() -> st.SearchStrategy[ipaddress.IPv4Network]:
    """Prefixes that often contain each other."""
    return st.builds(
        lambda number, bits: ipaddress.IPv4Network((number << 16, bits), strict=False),
        st.integers(0x0A00, 0x0A1F),
        st.integers(8, 24),
    )


@given(st.lists(st.tuples(prefixes(), st.sampled_from(["internal", "one", "two"])), unique_by=lambda each: each[0]))
def test_ranges_are_the_longest_prefixes(given_: list[tuple[ipaddress.IPv4Network, str]]) -> None:
    """Disjoint, in order, joined where they touch; every edge and the address beside it have the right class."""
    lists = {name: [str(network) for network, each in given_ if each == name] for name in ("internal", "one", "two")}
    classes = Classes(lists.pop("internal"), lists)
    ranges = classes.ranges(4)
    for before, after in itertools.pairwise(ranges):
        assert before.first <= before.last < after.first
        assert before.last + 1 < after.first or before.cls != after.cls
    for each in ranges:
        assert sum(network.num_addresses for network in each.networks(4)) == each.last - each.first + 1
    edges = {int(end) + step for network, _ in given_ for end in (network[0], network[-1]) for step in (-1, 0, 1)}
    for number in edges:
        address = ipaddress.IPv4Address(number)
        holding = [(network.prefixlen, name) for network, name in given_ if address in network]
        assert classes.of(str(address)) == (max(holding)[1] if holding else "internet")
