"""Requests in YAML: each error names the line, the field's path, and what to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.api.configtext import ConfigTextError
from muster.network.plan.config import parse_request
from muster.network.plan.document import parse_document, parse_plan
from muster.network.plan.estate import parse_estate
from muster.network.plan.range import Family

GOOD = """\
provider: metal
supernets: [10.0.0.0/8]
clusters:
- {name: hub, role: hub, nodes: 2, podsPerNode: 10, services: 10}
- {name: a, nodes: 2, podsPerNode: 10, services: 10}
"""


def test_a_short_request_has_defaults() -> None:
    asked = parse_request(GOOD)
    assert (asked.families, asked.years, asked.network, asked.encapsulated) == ((Family.V4,), 3, "routes", "none")
    assert asked.clusters[1].role == "spoke"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("metal", "gcp", "line 1: provider: Invalid enum value 'gcp'; use one of aws, azure, metal"),
        ("supernets", "supernet", "did you mean supernets?"),
        ("nodes: 2, podsPerNode: 10, services: 10}\n- {", "podsPerNode: 10, services: 10}\n- {", "missing"),
        ("name: a, nodes: 2", "name: a, nodes: many", "line 5: clusters[1].nodes: Expected `int`"),
        ("name: a, nodes: 2", "name: a, nodes: 0", "line 5: clusters[1].nodes: 0 is not possible; write 1 to 1000000"),
        ("name: a", "name: A b", "line 5: clusters[1].name: 'A b' is not a name"),
        ("name: a", "name: hub", "line 5: clusters[1].name: 'hub' is the name of another cluster"),
        ("role: hub", "role: spoke", "line 3: clusters: there are 0 hubs"),
        ("name: a,", "name: a, role: hub,", "line 3: clusters: there are 2 hubs"),
        (
            "[10.0.0.0/8]",
            "[10.0.0.1/8]",
            "line 2: supernets[0]: 10.0.0.1/8 has bits beyond its prefix; write 10.0.0.0/8",
        ),
        ("[10.0.0.0/8]", "[0.0.0.0/0]", "line 2: supernets[0]: is the whole address space"),
        ("[10.0.0.0/8]", "[]", "line 2: supernets: is empty"),
        ("[10.0.0.0/8]", "[fd00::/48]", "line 2: supernets: holds no IPv4 range"),
        ("metal", "metal\npodNetwork: native", "line 2: podNetwork: only clouds assign blocks to NICs"),
        ("metal", "metal\npodNetwork: overlay\nencapsulation: none", "line 3: encapsulation: an overlay encapsulates"),
        ("metal", "metal\nfamilies: [IPv4, IPv4]", "line 2: families: write IPv4, IPv6, or both once"),
        ("metal", "metal\nyears: 0", "line 2: years: 0 is not possible; write 1 to 20"),
        ("metal", "metal\ngrowthPerYear: -0.1", "line 2: growthPerYear: -0.1 is not possible"),
        ("metal", "metal\nmtu: 576", "line 2: mtu: 576 is not possible; write 1280 to 65535"),
        ("metal", "metal\ntaken: [{cidr: x}]", "line 2: taken[0].cidr: 'x' is not a range"),
        ("name: a,", "name: a, namespaces: [A],", "line 5: clusters[1].namespaces[0]: 'A' cannot be the name"),
        ("name: a,", "name: a, connectionsPerPod: 9999999999,", "line 5: clusters[1].connectionsPerPod: 9999999999 is"),
        ("name: a,", "name: a, interfaces: 4,", "line 5: clusters[1].interfaces: write both interfaces and"),
        ("name: a,", "name: a, growthPerYear: .nan,", "line 5: clusters[1].growthPerYear: nan is not possible"),
        (
            "metal",
            "metal\nprevious:\n- {cluster: a, use: pods, cidr: 10.0.0.0/16}\n"
            "- {cluster: hub, use: pods, cidr: 10.0.9.0/24}",
            "previous[1].cidr: 10.0.9.0/24 overlaps pods of a, 10.0.0.0/16; a plan cannot keep both",
        ),
        (
            "metal",
            "metal\nprevious: [{cluster: a, use: pods, cidr: 10.0.0.0/16, growsTo: 10.2.0.0/15}]",
            "previous[0].growsTo: does not contain 10.0.0.0/16",
        ),
        (
            "metal",
            "metal\nprevious: [{cluster: a, use: pods, cidr: 'fd00::/48'}]",
            "previous[0].cidr: is IPv6; add IPv6 to families",
        ),
        (
            "metal",
            "metal\ntaken: [{cidr: 10.0.0.0/12, name: lab}]\nprevious: [{cluster: a, use: pods, cidr: 10.0.0.0/16}]",
            "previous[0].cidr: 10.0.0.0/16 overlaps lab",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_what_to_write(old: str, new: str, error: str) -> None:
    with pytest.raises(ConfigTextError) as raised:
        parse_request(GOOD.replace(old, new, 1))
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("added", "hint"),
    [
        ("growthPerYear: 50%\n", "write 0.5"),
        ("families: [v4]\n", "did you mean IPv4?"),
        ("families: [6]\n", "use one of IPv4, IPv6"),
    ],
)
def test_a_wrong_number_or_name_is_named_with_a_value_to_write(added: str, hint: str) -> None:
    with pytest.raises(ConfigTextError) as raised:
        parse_request(GOOD + added)
    assert hint in str(raised.value)


KUBECONFIG = "kind: Config\ncontexts: []\n"
WRITTEN_ESTATE = "supernets: [10.0.0.0/8]\nclusters: [{name: a, podRanges: [10.0.0.0/16]}]\n"


@pytest.mark.parametrize(
    ("parse", "text", "error"),
    [
        (parse_request, "kind: NetworkPlan\nranges: []\n", "this is a plan; give it as --previous"),
        (parse_request, KUBECONFIG, "this is a kubeconfig; muster network check reads it"),
        (parse_request, WRITTEN_ESTATE, "this is an estate; muster network check reads it"),
        (parse_request, "", "this is empty; write provider, supernets and clusters"),
        (parse_document, GOOD, "this is a request for a plan, without ranges to check"),
        (parse_plan, GOOD, "this is a request for a plan, not a plan"),
        (parse_plan, KUBECONFIG, "this is a kubeconfig, not a plan"),
    ],
)
def test_a_file_of_another_command_is_recognised(parse: Callable[[str, str], object], text: str, error: str) -> None:
    with pytest.raises(ConfigTextError) as raised:
        parse(text, "f.yaml")
    assert str(raised.value).startswith(f"f.yaml:1:1: {error}")


@pytest.mark.parametrize("junk", ["- 1\n" * 3, "words and\nmore words\n"])
def test_a_text_that_is_not_a_mapping_is_refused_at_its_beginning(junk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[str] = []
    monkeypatch.setattr("muster.network.plan.kinds.document", composed.append)
    with pytest.raises(ConfigTextError, match="not a mapping of fields"):
        parse_document(junk)
    assert composed == []


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigTextError) as raised:
        parse_request(GOOD.replace("nodes: 2", "nodes: 0").replace("services: 10", "services: 2000000"), "plan.yaml")
    assert len(str(raised.value).splitlines()) == 4
    assert str(raised.value).startswith("plan.yaml:4:")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("clusters: [{name: a, podRanges: [10.0.0.1/8]}]", "clusters[0].podRanges[0]: 10.0.0.1/8 has bits"),
        ("clusters: [{name: a, nodes: -1}]", "clusters[0].nodes: -1 is not possible"),
        ("clusters: [{name: a}, {name: a}]", "clusters[1].name: 'a' is the name of another cluster"),
        ("clusters: [{name: a, nodeMaskIPv4: 64}]", "a node mask is longer than an address"),
        ("clusters: [{name: a}]\npeerings: [{clusters: [a, b]}]", "peerings[0].clusters: there is no cluster 'b'"),
        ("clusters: [{name: a, podRange: []}]", "did you mean podRanges?"),
    ],
)
def test_a_wrong_value_of_an_estate_is_named(text: str, error: str) -> None:
    with pytest.raises(ConfigTextError) as raised:
        parse_estate(text)
    assert error in str(raised.value)


def test_a_kubeconfig_is_recognised_and_broken_text_is_not_taken_for_one() -> None:
    assert parse_document("apiVersion: v1\nkind: Config\n") is None
    assert parse_document("clusters: []\ncontexts: []\nusers: []\n") is None
    for text in ("kind: [", "- 1", "", "kind: Other"):
        with pytest.raises(ConfigTextError):
            parse_document(text)
