"""Issue 17 A3: the guard's configuration is strict, and each problem says what to change."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml

from muster.api.configtext import ConfigTextError
from muster.telemetry.guard.callers.caller import NotIdentifiedReason
from muster.telemetry.guard.config import Group, parse_config
from muster.telemetry.guard.decide import Reason
from muster.telemetry.guard.limits import Limits

HASH = "a" * 64
TOKEN = f"{{name: a, sha256: {HASH}}}"
UPSTREAM = "upstream: {url: http://prometheus:9090}\n"


def problem(text: str, *, upstream: str = UPSTREAM) -> str:
    with pytest.raises(ConfigTextError) as caught:
        parse_config(upstream + text)
    return str(caught.value)


def test_smallest_configuration_refuses_all_callers_and_has_limits() -> None:
    config = parse_config(UPSTREAM)
    assert not config.callers.anonymous
    assert config.when_unknown == config.when_overloaded == "refuse"
    assert config.group("any") == Group()
    assert config.group("any").limits.max_series > 0


def test_default_budgets_have_room_for_every_request_that_limits_allow() -> None:
    config = parse_config(UPSTREAM + "groups: {big: {limits: {maxSamples: 1000000000, maxSeries: 1000000}}}")
    assert config.group("big").caller_budget.concurrent_cost == 1_100_000_000
    assert config.group("other").caller_budget.concurrent_cost == Limits().greatest_cost
    assert Limits().greatest_cost == pytest.approx(215e6, rel=0.01)
    assert config.budget_in_all.concurrent_cost == 2_200_000_000


def test_configured_budget_replaces_the_default() -> None:
    config = parse_config(UPSTREAM + "inAll: {concurrentCost: 7}\ngroups: {default: {eachCaller: {concurrentCost: 5}}}")
    assert config.budget_in_all.concurrent_cost == 7
    assert config.group("default").caller_budget.concurrent_cost == 5


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("callers: {tokens: [{name: a, sha256: xyz}]}", "callers.tokens[0].sha256"),
        (f"callers: {{tokens: [{{name: A b, sha256: {HASH}}}]}}", "callers.tokens[0].name"),
        (f"callers: {{tokens: [{{name: anonymous, sha256: {HASH}}}]}}", "callers.tokens[0].name"),
        (f"callers: {{tokens: [{TOKEN}, {{name: a, sha256: {'b' * 64}}}]}}", "callers.tokens[1].name"),
        (f"callers: {{tokens: [{TOKEN}, {{name: b, sha256: {HASH}}}]}}", "callers.tokens[1].sha256"),
        (f"callers: {{tokens: [{{name: a, sha256: {HASH}, group: g}}]}}", "callers.tokens[0].group"),
        (f"callers: {{tokens: [{{name: a, sha256: {HASH}, tenant: 'a b'}}]}}", "callers.tokens[0].tenant"),
        ("callers: {cluster: {callers: [{name: a}]}}", "callers.cluster.callers[0]"),
        ("callers: {cluster: {audience: '', callers: [{name: a, users: [b]}]}}", "callers.cluster.audience"),
        ("callers: {certificates: {callers: [{name: a, dns: b}]}}", "callers.certificates.caFile"),
        ("callers: {certificates: {caFile: /ca, callers: [{name: a, dns: b}]}}", "callers.certificates"),
        ("callers: {certificates: {caFile: /ca, callers: [{name: a}]}}", "callers.certificates.callers[0]"),
        ("callers: {peers: [{name: grafana}]}", "callers.peers[0]"),
        ("callers: {peers: [{name: grafana, caller: b}]}", "callers.peers[0].caller"),
        ("callers: {peers: [{name: g, addresses: [10.0.0.1/8]}]}", "callers.peers[0].addresses[0]"),
        ("callers: {peers: [{name: g, addresses: [grafana]}]}", "callers.peers[0].addresses[0]"),
        ("callers: {peers: [{name: g, addresses: ['::1'], userHeader: Cookie}]}", "callers.peers[0].userHeader"),
        ("callers: {peers: [{name: g, addresses: ['::1'], userHeader: a b}]}", "callers.peers[0].userHeader"),
        ("callers: {peers: [{name: g, addresses: ['::1']}, {name: g, addresses: ['::2']}]}", "callers.peers[1].name"),
        (f"callers: {{tokens: [{TOKEN}], peers: [{{name: a, addresses: ['::1']}}]}}", "callers.peers[0].name"),
        ("callers: {anonymous: g}", "callers.anonymous"),
        ("groups: {g: {eachCaller: {concurrentCost: 0}}}", "groups.g.eachCaller.concurrentCost"),
        ("groups: {g: {limits: {maxSeries: 0}}}", "groups.g.limits.maxSeries"),
        (
            "groups: {g: {limits: {maxRangeSeconds: 600, defaultRangeSeconds: 601}}}",
            "groups.g.limits.defaultRangeSeconds",
        ),
        ("groups: {g: {limits: {timeoutSeconds: .inf}}}", "groups.g.limits.timeoutSeconds"),
        ("groups: {g: {together: {costPerMinute: -1}}}", "groups.g.together.costPerMinute"),
        ("inAll: {concurrentCost: .inf}", "inAll.concurrentCost"),
        ("inAll: {concurrentCost: .nan}", "inAll.concurrentCost"),
        ("queue: {waitSeconds: 301}", "queue.waitSeconds"),
        ("queue: {perCaller: 0}", "queue.perCaller"),
        ("dearest: {entries: 1}", "dearest.entries"),
        ("dearest: {halfLifeSeconds: 1}", "dearest.halfLifeSeconds"),
        ("dearest: {logCost: 0}", "dearest.logCost"),
        ("dearest: {readers: [root]}", "dearest.readers[0]"),
        ("tls: {certificateFile: /a}", "tls"),
        ("dryrun: true", "dryrun"),
        ("whenUnknown: maybe", "whenUnknown"),
    ],
)
def test_problem_names_its_place(text: str, path: str) -> None:
    assert f"{path}: " in problem(text)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/",
        "/api/v1/",
        "/api/v1/query",
        "/api/v1/label/x/values",
        "/api/v1/label/",
        "/api/v1/read",
        "/federate",
        "api/v1/rules",
        "/api/v1/../v1/query",
        "/api/v1/./query",
        "//api/v1/rules",
        "/a b",
        "/api/v1/%71uery",
    ],
)
def test_paths_that_would_pass_queries_without_a_price_are_refused(path: str) -> None:
    assert "allowPaths[0]" in problem(f"allowPaths: ['{path}']")


def test_single_paths_can_be_allowed() -> None:
    paths = ("/api/v1/admin/tsdb/snapshot", "/-/reload", "/api/v1/alertmanagers", "/api/v1/status/", "/graph")
    assert parse_config(f"{UPSTREAM}allowPaths: {list(paths)}").allow_paths == paths


@pytest.mark.parametrize(
    ("upstream", "path"),
    [
        ("{url: prometheus}", "upstream.url"),
        ("{url: 'ftp://prometheus'}", "upstream.url"),
        ("{url: 'http://'}", "upstream.url"),
        ("{url: 'http://x:99999'}", "upstream.url"),
        ("{url: 'http://user:secret@x'}", "upstream.url"),
        ("{url: 'http://x/?a=b'}", "upstream.url"),
        ("{url: 'http://x', caFile: /ca}", "upstream.url"),
        ("{url: 'https://x', certificateFile: /a}", "upstream.certificateFile"),
        ("{url: 'http://x', tokenFile: /a, passAuthorization: true}", "upstream.passAuthorization"),
        ("{url: 'http://x', tenantHeader: 'a b'}", "upstream.tenantHeader"),
        ("{url: 'http://x', headers: {Authorization: secret}}", "upstream.headers.Authorization"),
        ("{url: 'http://x', headers: {x-scope-orgid: a}}", "upstream.headers.x-scope-orgid"),
        ('{url: "http://x", headers: {A: "b\\r\\nC: d"}}', "upstream.headers.A"),
        ("{}", "upstream"),
    ],
)
def test_problem_of_the_upstream_names_its_place(upstream: str, path: str) -> None:
    message = problem("", upstream=f"upstream: {upstream}\n")
    assert path in message
    assert "secret" not in message


def blocks(text: str) -> list[str]:
    """The YAML blocks of a page, and what `cat guard.yaml` shows."""
    found = re.findall(r"^ *```yaml\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    shown = re.findall(r"\$ cat guard.yaml\n(.*?)^ *\$", text, re.DOTALL | re.MULTILINE)
    return [*found, *(textwrap.dedent(each) for each in shown)]


def test_configurations_of_the_page_are_valid() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guard.md").read_text()
    parsed = [yaml.safe_load(block) for block in blocks(page)]
    configs = [each["telemetry"]["guard"]["config"] for each in parsed if "telemetry" in each]
    configs += [each for each in parsed if "upstream" in each]
    assert len(configs) == 2
    for config in configs:
        assert parse_config(yaml.safe_dump(config)).dry_run


def test_page_explains_every_refusal() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guard.md").read_text()
    explained = set(re.findall(r"^\| \d{3} \| `([a-z_-]+)` \|", page, re.MULTILINE))
    assert {*get_args(NotIdentifiedReason), *get_args(Reason), "denied_path", "over_budget"} == explained


def test_page_lists_every_limit() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guard.md").read_text()
    names = {field.encode_name for field in msgspec.structs.fields(Limits)}
    assert names == {name for name in re.findall(r"^\| `([A-Za-z]+)` \|", page, re.MULTILINE) if name in names}
