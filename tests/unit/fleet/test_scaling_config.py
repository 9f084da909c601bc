"""The ConfigMap of scaling: what it means, and the messages about a bad one."""

from __future__ import annotations

import pytest

from muster.api.configtext import ConfigTextError
from muster.fleet.scaling.config import parse_config

PROVIDERS = frozenset({"aws", "external"})

GOOD = """\
pools:
- name: dear
  provider: aws
  group: asg-2
  options: {region: us-east-1}
  min: 1
  max: 4
  price: 40
  idleSeconds: 120
  pollSeconds: 30
  template:
    labels: {muster.dev/pool: h100}
    taints: [{key: muster.dev/pool, value: h100, effect: NoSchedule}]
    capacity: {cpu: 180, memory: 1900Gi, nvidia.com/gpu: 8}
- name: cheap
  provider: external
  max: 64
  price: 10.5
  template:
    labels: {pool: cheap}
    capacity: {cpu: 500m, pods: 20}
"""


def test_pools_come_by_price_with_defaults() -> None:
    cheap, dear = parse_config(GOOD, PROVIDERS)
    assert (cheap.name, cheap.group, cheap.min, cheap.max) == ("cheap", "cheap", 0, 64)
    assert (cheap.idle_s, cheap.cool_down_s, cheap.join_timeout_s) == (600.0, 300.0, 900.0)
    assert cheap.template.capacity == {"cpu": 500, "pods": 20}
    assert (cheap.poll_s, dear.poll_s) == (15.0, 30.0)
    assert (dear.group, dear.options, dear.idle_s) == ("asg-2", {"region": "us-east-1"}, 120.0)
    assert dear.template.capacity == {"cpu": 180_000, "memory": 1900 << 30, "nvidia.com/gpu": 8, "pods": 110}
    assert dear.template.taints[0].effect == "NoSchedule"


def test_no_pools_is_a_configuration() -> None:
    assert parse_config("pools: []", PROVIDERS) == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max: 4", "max: 0", "line 6: pools[0].min: needs 0 <= min <= max, and min is 1, max is 0"),
        ("min: 1", "min: -1", "line 6: pools[0].min: needs 0 <= min <= max"),
        ("min: 1", "min: one", "line 6: pools[0].min: Expected `int`, got `str`"),
        ("price: 40", "price: -2", "line 8: pools[0].price: -2 is not possible"),
        ("price: 40", "price: .nan", "line 8: pools[0].price: nan is not possible"),
        ("idleSeconds: 120", "idleSeconds: 0", "line 9: pools[0].idleSeconds: 0 is not possible"),
        ("pollSeconds: 30", "pollSeconds: 0.5", "line 10: pools[0].pollSeconds: 0.5 is not possible; write 1 to 300"),
        ("idleSeconds", "idleSecond", "pools[0].idleSecond: unknown field; did you mean idleSeconds?"),
        (
            "provider: aws",
            "provider: gcp",
            "line 3: pools[0].provider: there is no provider 'gcp'; use aws or external",
        ),
        ("name: cheap", "name: dear", "line 15: pools[1].name: another pool is called dear"),
        ("name: cheap", "name: Cheap/1", "line 15: pools[1].name: 'Cheap/1' is not a DNS label"),
        ("    labels: {pool: cheap}\n", "", "line 19: pools[1].template: needs labels"),
        ("cpu: 500m", "cpu: 5x", "line 21: pools[1].template.capacity.cpu: '5x' is not a quantity"),
        ("cpu: 500m", "cpu: -1", "line 21: pools[1].template.capacity.cpu: -1 is negative"),
        ("effect: NoSchedule", "effect: Never", "line 13: pools[0].template.taints[0].effect: 'Never' is not an"),
        ("  max: 64\n", "", "line 15: pools[1]: Object missing required field `max`"),
        ("pools:", "pool:", "line 1: pool: unknown field; did you mean pools?"),
        ("max: 64", "max: [", "not YAML"),
    ],
)
def test_error_is_named_by_its_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigTextError) as caught:
        parse_config(GOOD.replace(old, new, 1), PROVIDERS)
    assert said in str(caught.value)


def test_a_group_belongs_to_one_pool() -> None:
    text = GOOD.replace("provider: external\n", "provider: aws\n  group: asg-2\n  options: {region: us-east-1}\n")
    with pytest.raises(ConfigTextError, match=r"line 17: pools\[1\].group: pool dear has group asg-2 already"):
        parse_config(text, PROVIDERS)


@pytest.mark.parametrize("text", ["", "# nothing", "null"])
def test_empty_text_is_not_a_configuration(text: str) -> None:
    with pytest.raises(ConfigTextError, match="it is empty"):
        parse_config(text, PROVIDERS)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigTextError) as caught:
        parse_config(GOOD.replace("price: 40", "price: -1").replace("max: 64", "max: -64"), PROVIDERS)
    assert len(str(caught.value).splitlines()) == 2
