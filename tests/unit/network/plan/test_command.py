"""`muster network plan` and `muster network check` as they are typed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

from muster.cli.main import run
from muster.network.plan.estate import Estate, EstateCluster

PAGE = Path(__file__).parents[4] / "docs/network-plan.md"
EXAMPLE, ESTATE = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "clusters.yaml"
    file.write_text(EXAMPLE)
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert run(["network", *map(str, arguments)]) == code
    return capsys.readouterr().out


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    capsys.readouterr()
    assert run(["network", *map(str, arguments)]) == code
    return capsys.readouterr().err


def test_the_example_of_the_page_gives_the_plan_that_it_shows(
    request_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "plan.svg"
    plan: dict[str, Any] = yaml.safe_load(printed(capsys, "plan", request_file, "--picture", picture, "-o", "yaml"))
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.read_text().partition("### Fields")[0], re.MULTILINE)
    parts = re.findall(r"\w+", " ".join(named))
    assert set(parts) <= plan.keys()
    assert plan["findings"] == []
    assert picture.read_text().startswith("<svg ")
    assert len({each["cidr"] for each in plan["ranges"]}) == 20
    assert json.loads(printed(capsys, "plan", request_file, "-o", "json")) == plan


def test_the_estate_of_the_page_has_the_findings_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "estate.yaml"
    file.write_text(ESTATE)
    found = json.loads(printed(capsys, "check", file, "-o", "json", code=1))["findings"]
    named = set(re.findall(r"`([a-z-]+)`", PAGE.read_text().partition("| finding |")[2].partition("###")[0]))
    ids = {each["id"] for each in found}
    assert ids == {"overlap", "reserved-range", "limit-addresses", "neighbours"}
    assert ids <= named


def test_every_finding_that_the_page_names_is_in_the_rules_and_the_other_way() -> None:
    table = PAGE.read_text().partition("| finding |")[2].partition("###")[0]
    named = {
        each for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for each in re.findall(r"`([\w-]+)`", row)
    }
    source = "".join(file.read_text() for file in (PAGE.parents[1] / "src/muster/network/plan/checks").glob("*.py"))
    written = set(re.findall(r'id="([a-z-]+)"', source))
    limits = {f"limit-{each}" for each in re.findall(r'_beyond\(\s*"([a-z-]+)"', source)}
    assert named == written | limits


def test_a_plan_is_printed_as_tables(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "plan", request_file)
    assert "CLUSTER" in out
    assert "GC_THRESH1/2/3" in out
    assert re.search(r"^train +pods +10\.\S+ +\d+% +[\d.]+ ", out, re.MULTILINE)
    assert out.rstrip().endswith("No finding.")


def test_a_narrow_terminal_leaves_out_columns_before_it_cuts_ranges(
    request_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["network", "plan", str(request_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, map(click.unstyle, lines))) <= 60
    plan = yaml.safe_load(printed(capsys, "plan", request_file, "-o", "yaml"))
    cells = {cell for line in lines for cell in click.unstyle(line).split()}
    assert {each["cidr"] for each in plan["ranges"]} <= cells


@pytest.mark.slow
def test_a_plan_is_checked_like_an_estate(
    request_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(printed(capsys, "plan", request_file, "-o", "yaml"))
    assert "No finding." in printed(capsys, "check", file)
    found = json.loads(printed(capsys, "check", file, file, "-o", "json", code=1))
    names = [each["name"] for each in found["estate"]["clusters"]]
    assert len(names) == len(set(names)) == 6
    assert all(f"of {file}" in name for name in names)
    assert {each["id"] for each in found["findings"]} >= {"overlap"}


def test_each_finding_names_its_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "estate.yaml"
    file.write_text(
        "provider: azure\nclusters:\n"
        "- {name: one, podsPerNode: 300, addresses: individual, nodeRanges: [10.0.0.0/24]}\n"
        "- {name: two, podsPerNode: 300, addresses: individual, nodeRanges: [10.0.1.0/24]}\n"
    )
    out = printed(capsys, "check", file, code=1)
    assert re.findall(r"^  where +(.*)$", out, re.MULTILINE) == ["one", "two"]


def test_a_picture_in_another_format_is_refused(
    request_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "plan.png"
    assert "ends in .svg" in said(capsys, "plan", request_file, "--picture", picture)
    assert not picture.exists()


def test_an_earlier_plan_keeps_its_ranges(
    request_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = tmp_path / "plan.json"
    first.write_text(printed(capsys, "plan", request_file, "-o", "json"))
    request_file.write_text(EXAMPLE.replace("nodes: 500", "nodes: 900"))
    second = json.loads(printed(capsys, "plan", request_file, "--previous", first, "-o", "json"))
    kept = {each["cidr"] for each in second["ranges"] if each.get("kept")}
    assert kept == {each["cidr"] for each in json.loads(first.read_text())["ranges"]}
    assert "previous" not in second["request"]


def test_manifests_are_plain_yaml_without_anchors(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["network", "plan", str(request_file), "--manifests", "train"]) == 0
    out, err = capsys.readouterr()
    assert "NetworkPolicies only add permissions" in err
    assert "&id" not in out
    assert [each["kind"] for each in yaml.safe_load_all(out)] == ["NetworkPolicy"]
    assert printed(capsys, "plan", request_file, "--manifests", "hub") == ""


def test_errors_name_the_file_and_exit_with_2(
    request_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "there is no cluster 'x' in the plan" in said(capsys, "plan", request_file, "--manifests", "x")
    assert "leave out -o" in said(capsys, "plan", request_file, "--manifests", "train", "-o", "json")
    assert "not a plan; give a file of muster network plan" in said(
        capsys, "plan", request_file, "--previous", request_file
    )
    assert "cannot read" in said(capsys, "plan", tmp_path / "none.yaml")
    request_file.write_text(EXAMPLE.replace("10.0.0.0/8", "10.0.0.0/20"))
    error = said(capsys, "plan", request_file)
    assert f"{request_file}: pods of train need" in error
    request_file.write_text(EXAMPLE.replace("azure", "azur"))
    assert f"{request_file}:1:" in said(capsys, "plan", request_file)
    assert f"{request_file}:" in said(capsys, "check", request_file)
    assert "cannot write" in said(capsys, "plan", _good(tmp_path), "--picture", tmp_path / "no/where.svg", code=1)


def _good(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(EXAMPLE)
    return file


def test_a_plan_that_the_provider_cannot_carry_exits_with_1(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request_file.write_text(
        EXAMPLE.replace("nodes: 7500", "nodes: 70000").replace("10.0.0.0/8", "10.0.0.0/8, 172.16.0.0/12")
    )
    out = printed(capsys, "plan", request_file, code=1)
    assert "limit-addresses" in out


def test_files_of_different_providers_need_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("provider: aws\nclusters: [{name: a, nodeRanges: [10.0.0.0/24]}]\n")
    second.write_text("provider: azure\nclusters: [{name: b, nodeRanges: [10.0.1.0/24]}]\n")
    assert "choose with --provider" in said(capsys, "check", first, second)
    assert "No finding." in printed(capsys, "check", first, second, "--provider", "metal")


def test_the_page_lists_every_field_of_an_estate() -> None:
    tables = PAGE.read_text().partition("| field of the estate |")[2].partition("| finding |")[0]
    named = {each for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for each in re.findall(r"`(\w+)`", row)}
    fields = {each.encode_name for kind in (Estate, EstateCluster) for each in msgspec.structs.fields(kind)}
    assert named == fields
