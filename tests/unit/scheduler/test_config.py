"""Issue 13.6: the configuration of the scheduler: its errors name the line, and no ConfigMap changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.api.configtext import ConfigTextError
from muster.kube.errors import BadConfig
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.scheduler.config import CONFIG_KEY, SchedulerConfig, parse_config, read_config
from muster.scheduler.plan import Settings

FULL = """\
policy: easy
pools:
  h100: {policy: strict}
backfillDelaySeconds: 240
backfillMinRunSeconds: 30
backfillAsksMax: 5
order: fair
fair: {halfLifeHours: 12, waitMaxHours: 6}
"""


def config_map(**data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="muster-scheduler"), data=data)


def test_every_field_reaches_the_settings_and_other_settings_stay() -> None:
    base = Settings(bind_deadline_s=7.0, team_key="example.com/team", preflight_required=True)
    settings = parse_config(FULL).applied_to(base)
    assert settings == msgspec.structs.replace(
        base,
        policy="easy",
        pool_policies={"h100": "strict"},
        backfill_delay_s=240.0,
        backfill_min_run_s=30.0,
        backfill_asks_max=5,
        order="fair",
        usage_half_life_s=12 * 3600.0,
        fair_wait_max_s=6 * 3600.0,
    )
    assert [settings.policy_of(pool) for pool in ("h100", "other", "")] == ["strict", "easy", "easy"]


def test_empty_text_means_the_defaults_of_the_settings() -> None:
    assert parse_config("").applied_to(Settings()) == Settings()
    assert parse_config("{}") == SchedulerConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: strct", "f.yaml:1:9: policy: Invalid enum value 'strct'; did you mean strict?"),
        ("\npools:\n  a: {polcy: easy}", "f.yaml:3:7: pools.a.polcy: unknown field; did you mean policy?"),
        ("pools:\n  a: {policy: greedy}", "f.yaml:2:15: pools.a.policy: Invalid enum value 'greedy'; use one of"),
        ("pools: {'': {policy: easy}}", "f.yaml:1:1: pools: a pool has an empty name"),
        ("backfillDelaySecond: 3", "did you mean backfillDelaySeconds?"),
        ("backfillDelaySeconds: .nan", "backfillDelaySeconds: nan is not possible; write 0 to 86400"),
        ("backfillDelaySeconds: 90000", "backfillDelaySeconds: 90000 is not possible"),
        ("backfillMinRunSeconds: -1", "backfillMinRunSeconds: -1 is not possible"),
        ("backfillAsksMax: -1", "backfillAsksMax: -1 is not possible; write 0 to 1000"),
        ("order: fare", "order: Invalid enum value 'fare'; did you mean fair?"),
        ("fair: {halfLifeHours: 0}", "fair.halfLifeHours: 0 is not possible; write 0.1 to 8760"),
        ("fair: {waitMaxHours: 9000}", "fair.waitMaxHours: 9000 is not possible"),
        ("policy: easy\npolicy: strict", "f.yaml:2:1: policy is there twice; keep one"),
        ("policy: [", "not YAML"),
    ],
)
def test_errors_name_the_place_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigTextError) as refused:
        parse_config(text, "f.yaml")
    assert said in str(refused.value)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(ConfigTextError) as refused:
        parse_config("policy: x\norder: y\nfair: {z: 1}\n", "f.yaml")
    assert [line.split(": ")[0] for line in str(refused.value).splitlines()] == [
        "f.yaml:1:9",
        "f.yaml:2:8",
        "f.yaml:3:8",
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, None),
        (config_map(), SchedulerConfig()),
        (config_map(**{CONFIG_KEY: "order: fair"}), SchedulerConfig(order="fair")),
    ],
)
def test_a_missing_config_map_overrides_nothing(found: ConfigMap | None, expected: Any) -> None:
    assert read_config(found) == expected


def test_another_key_is_an_error() -> None:
    with pytest.raises(BadConfig, match=r"no key scheduler\.yaml; the data has config\.yaml: rename it"):
        read_config(config_map(**{"config.yaml": ""}))
