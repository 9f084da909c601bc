"""Drop rules in the user's files: only text is added, the content changes only by the rules, and comments stay."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.telemetry.usage.proposal.configs import Change, ConfigError, changed, patch_names
from muster.telemetry.usage.proposal.droprules import DropRule

RULE = DropRule("node", None, "a_(b|c)", ("a_b", "a_c"), 7, 700.0)
STEP = {"source_labels": ["__name__"], "regex": "a_(b|c)", "action": "drop"}


def change(text: str, *pools: str, name: str = "prometheus.yml", rule: DropRule = RULE) -> Change:
    return changed(Path(name), text, {pool: [(rule, "Not read.")] for pool in pools or ("node",)})


def applied(found: Change, folder: Path) -> str:
    """The text after `patch -p0`."""
    (folder / found.path.name).write_text(found.before, newline="")
    subprocess.run(["patch", "-s", "--binary", "-p0"], input=found.diff().encode(), cwd=folder, check=True)
    return (folder / found.path.name).read_bytes().decode()


def removed_lines(found: Change) -> list[str]:
    return [each for each in found.diff().splitlines() if each.startswith("-") and not each.startswith("---")]


@pytest.mark.parametrize("outside", [False, True], ids=["below", "elsewhere"])
@pytest.mark.parametrize("style", ["relative", "absolute"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_printed_command_applies_the_diff_of_several_files(outside: bool, style: str, end: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    files = [folder / "sub" / "one file.yml", (tmp_path if outside else folder) / "two.yml"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"scrape_configs:{end}- job_name: node{end}  scheme: http{end}", newline="")
    paths = [each if style == "absolute" else Path(os.path.relpath(each, folder)) for each in files]
    found = [change(each.read_bytes().decode(), name=str(path)) for each, path in zip(files, paths, strict=True)]
    names, command = patch_names(paths, folder)
    text = "".join(each.diff(name) for each, name in zip(found, names, strict=True))
    subprocess.run([*command.split(), "-s"], input=text.encode(), cwd=folder, check=True)
    assert [each.read_bytes().decode() for each in files] == [each.after for each in found]
    assert all(each.after != each.before for each in found)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_diff_of_one_file_applies_to_its_name(end: str, tmp_path: Path) -> None:
    file, saved = tmp_path / "prometheus.yml", tmp_path / "drop.patch"
    file.write_text(f"scrape_configs:{end}- job_name: node{end}  scheme: http{end}", newline="")
    found = change(file.read_bytes().decode(), name=str(file))
    saved.write_text(found.diff(), newline="")
    subprocess.run(["patch", "--binary", "-s", str(file), str(saved)], cwd="/", check=True)
    assert file.read_bytes().decode() == found.after


BLOCKS = {
    "without steps": "scrape_configs:\n  - job_name: node\n    static_configs: [{targets: [a]}]\n",
    "dashes below the key": "scrape_configs:\n- job_name: node\n  static_configs:\n  - targets: [a]\n",
    "with steps": (
        "scrape_configs:\n- job_name: node\n  metric_relabel_configs:\n  # why\n  - action: drop\n"
        "    regex: x  # last\n  # after\n  scheme: http\n- job_name: other\n"
    ),
    "with deeper dashes": (
        "scrape_configs:\n  - job_name: node\n    metric_relabel_configs:\n        - action: drop\n"
        "          regex: x\n\n\n  # of the other\n  - job_name: other\n"
    ),
    "empty value": "scrape_configs:\n- job_name: node\n  params:\n\n- job_name: other\n  params: {a: [b]}\n",
    "block scalar": "scrape_configs:\n- job_name: node\n  x: |\n    # text\n    more\n\n# end\n",
    "no newline at the end": "scrape_configs:\n- job_name: node\n  scheme: http",
    "lines of Windows": "scrape_configs:\r\n- job_name: node\r\n  scheme: http\r\n- job_name: other\r\n",
    "name at the end": "scrape_configs:\n- scheme: http\n  # c\n  job_name: 'node'  # d\n",
    "name that is not ASCII": "# ü\nscrape_configs:\n- job_name: node\n  x: 'ü😀'\n- job_name: other\n",
    "separator of Unicode": "scrape_configs:\n- job_name: node\n  x: 'a\u2028b'\n- job_name: other\n",
    "document markers": "---\nscrape_configs:\n- job_name: node\n...\n",
    "value that is a reference": "x: &x [a]\nscrape_configs:\n- job_name: node\n  y: *x\n- job_name: other\n",
    "anchor of another job": "scrape_configs:\n- &n\n  job_name: node\n  scheme: http\n- job_name: other\n",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_rules_are_added_as_lines(name: str, tmp_path: Path) -> None:
    text = BLOCKS[name]
    found = change(text)
    assert (found.pools, found.by_hand) == ({"node"}, {})
    before, after = yaml.safe_load(text), yaml.safe_load(found.after)
    job = next(each for each in before["scrape_configs"] if each["job_name"] == "node")
    job["metric_relabel_configs"] = [*job.get("metric_relabel_configs", ()), STEP]
    assert after == before
    assert [each for each in removed_lines(found) if text.endswith("\n")] == []
    assert applied(found, tmp_path) == found.after
    assert found.after.replace("\r\n", "").count("\n") == (0 if "\r\n" in text else found.after.count("\n"))


def test_patch_finds_a_file_with_spaces_in_its_name(tmp_path: Path) -> None:
    found = change(BLOCKS["without steps"], name="our prometheus.yml")
    assert applied(found, tmp_path) == found.after


def test_rules_follow_the_last_line_of_their_job() -> None:
    lines = change(BLOCKS["block scalar"]).after.splitlines()
    assert lines[3:6] == ["    # text", "    more", "  metric_relabel_configs:"]
    assert lines[-2:] == ["", "# end"]


FLOWS = {
    "job in braces": "scrape_configs: [{job_name: node, scheme: http}, {job_name: other}]\n",
    "trailing comma": "scrape_configs:\n- {job_name: node, scheme: http,}\n",
    "list in brackets": "scrape_configs:\n- job_name: node\n  metric_relabel_configs: [{action: drop, regex: x}]\n",
    "empty list": "scrape_configs:\n- job_name: node\n  metric_relabel_configs: []  # none\n",
    "JSON": '{"scrape_configs": [{"job_name": "node", "metric_relabel_configs": [{"action": "drop"}]}]}',
}


@pytest.mark.parametrize("name", FLOWS)
def test_rules_are_added_inside_of_brackets(name: str, tmp_path: Path) -> None:
    text = FLOWS[name]
    found = change(text)
    before, after = yaml.safe_load(text), yaml.safe_load(found.after)
    before["scrape_configs"][0].setdefault("metric_relabel_configs", []).append(STEP)
    assert after == before
    assert applied(found, tmp_path) == found.after


REFERENCES = {
    "list is a reference": "x: &x\n- action: drop\nscrape_configs:\n- job_name: node\n  metric_relabel_configs: *x\n",
    "list is shared": (
        "scrape_configs:\n- job_name: node\n  metric_relabel_configs: &x\n  - action: drop\n"
        "- job_name: other\n  metric_relabel_configs: *x\n"
    ),
    "list is merged": (
        "x: &x\n  metric_relabel_configs: [{action: drop}]\n"
        "scrape_configs:\n- <<: *x\n  job_name: node\n  scheme: http\n"
    ),
    "list is a text": "scrape_configs:\n- job_name: node\n  metric_relabel_configs: wrong\n",
}


@pytest.mark.parametrize("name", REFERENCES)
def test_lists_with_references_are_left_to_the_user(name: str) -> None:
    text = REFERENCES[name]
    found = change(text, "node", "third")
    assert (found.pools, list(found.by_hand), found.after, found.diff()) == (set(), ["node"], text, "")


def test_one_list_with_a_reference_does_not_prevent_the_others() -> None:
    found = change(REFERENCES["list is a reference"] + "- job_name: third\n", "node", "third")
    assert (found.pools, list(found.by_hand)) == ({"third"}, ["node"])


MONITORS = """\
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: kubelet
  namespace: monitoring
spec:
  endpoints:
  - port: https
    metricRelabelings:
    - action: drop
      regex: x
      sourceLabels: [__name__]
  - port: cadvisor  # the second
  jobLabel: app
---
kind: PodMonitor
metadata: {name: pods, namespace: team}
spec:
  podMetricsEndpoints:
  - port: http
---
kind: Service
metadata: {name: other}
"""


def test_rules_of_monitors_go_to_the_endpoint_of_their_pool(tmp_path: Path) -> None:
    pools = ("serviceMonitor/monitoring/kubelet/1", "podMonitor/team/pods/0", "serviceMonitor/x/kubelet/0")
    found = change(MONITORS, *pools, name="monitors.yaml")
    assert found.pools == set(pools[:2])
    expected = list(yaml.safe_load_all(MONITORS))
    step: dict[str, Any] = {"sourceLabels": ["__name__"], "regex": "a_(b|c)", "action": "drop"}
    expected[0]["spec"]["endpoints"][1]["metricRelabelings"] = [step]
    expected[1]["spec"]["podMetricsEndpoints"][0]["metricRelabelings"] = [step]
    assert list(yaml.safe_load_all(found.after)) == expected
    assert removed_lines(found) == []
    assert applied(found, tmp_path) == found.after


def test_monitors_in_a_list_are_found() -> None:
    listed = {"kind": "List", "items": list(yaml.safe_load_all(MONITORS))}
    found = change(yaml.safe_dump(listed), "podMonitor/team/pods/0")
    assert found.pools == {"podMonitor/team/pods/0"}


def test_other_objects_of_the_operator_get_rules() -> None:
    text = "kind: ScrapeConfig\nmetadata: {name: a, namespace: b}\nspec:\n  staticConfigs: []\n"
    found = change(text + "---\n" + text.replace("ScrapeConfig", "Probe"), "scrapeConfig/b/a", "probe/b/a")
    assert (found.pools, removed_lines(found)) == ({"scrapeConfig/b/a", "probe/b/a"}, [])
    assert [len(each["spec"]["metricRelabelings"]) for each in yaml.safe_load_all(found.after)] == [1, 1]


def test_monitor_without_a_namespace_is_found_by_its_name() -> None:
    text = MONITORS.replace("  namespace: monitoring\n", "")
    assert change(text, "serviceMonitor/monitoring/kubelet/1").pools == {"serviceMonitor/monitoring/kubelet/1"}
    assert change(text, "serviceMonitor/a/kubelet/1", "serviceMonitor/b/kubelet/1").pools == set()


def test_list_of_additional_jobs_gets_rules() -> None:
    found = change("- job_name: other\n- job_name: node\n  scheme: http\n")
    assert yaml.safe_load(found.after)[1] == {"job_name": "node", "scheme": "http", "metric_relabel_configs": [STEP]}


def test_rule_of_one_job_compares_job_and_name() -> None:
    rule = DropRule("node", "it's", "it's;(a)", ("a",), 1, 1.0)
    found = change(BLOCKS["without steps"], rule=rule)
    [job] = yaml.safe_load(found.after)["scrape_configs"]
    assert job["metric_relabel_configs"] == [
        {"source_labels": ["job", "__name__"], "regex": "it's;(a)", "action": "drop"}
    ]


@pytest.mark.parametrize("regex", ["a\\.b", "a'b", 'a"b', "a #b", "a: b", "é", "a\u2028b", "a\x85b", "a\\{b"])
def test_any_pattern_survives_the_file(regex: str) -> None:
    for text in (BLOCKS["without steps"], FLOWS["empty list"]):
        found = change(text, rule=DropRule("node", None, regex, ("x",), 1, 1.0))
        assert yaml.safe_load(found.after)["scrape_configs"][0]["metric_relabel_configs"][0]["regex"] == regex


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "is not YAML"), ("kind: Service\n", "has no scrape_configs"), ("", "has no scrape_configs")],
)
def test_file_of_another_kind_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change(text)
