"""Issue 17: a runbook page for each alert, and nothing on a page that does not exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import click
import pytest

from muster.api.crd import KINDS
from muster.chart import alerts as generator
from muster.chart.alerts import PAGES
from muster.chart.files import chart
from muster.cli.main import cli
from muster.telemetry.alerts.alerts import by_name
from muster.telemetry.alerts.thresholds import THRESHOLDS
from tests.support.kubectl import kubectl_program

NAMES: Final = sorted(by_name())
HEADINGS: Final = ["Meaning", "How to check", "What to do", "How to silence"]
_KINDS: Final = {
    "configmap", "daemonset", "events", "flowschemas", "lease", "nodes", "pod", "pods", "podmonitors", "prometheuses",
    "secrets", "servicemonitors", *(kind.resource.plural for kind in KINDS),
}  # fmt: skip
_AMTOOL: Final = {"--duration", "--comment", "--author", "--alertmanager.url"}
every_alert = pytest.mark.parametrize("name", NAMES)


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Words after `program` in the text's commands: lines of blocks, and spans."""
    for line in re.findall(rf"(?:^|`){program} ([^`\n]+)", text, re.MULTILINE):
        yield shlex.split(line)


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert sorted(file.stem for file in PAGES.glob("*.md") if file.name != "README.md") == NAMES


def test_pages_and_rules_are_what_the_alerts_say() -> None:
    assert generator.main(["--check"]) == 0


@every_alert
def test_a_page_says_meaning_checks_remedy_and_silence(name: str) -> None:
    title, *sections = re.split(r"^## ", page(name), flags=re.MULTILINE)
    assert title.startswith(f"# {name}\n")
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert all(len(section.partition("\n")[2].split()) >= 8 for section in sections)
    checks = sections[1]
    assert any(checks.count(program) for program in ("kubectl ", "muster ", "query `", "`/guard/")), checks
    assert f"alertname={name}" in sections[3]


@every_alert
def test_commands_of_muster_are_there(name: str) -> None:
    for words in commands(page(name), "muster"):
        command: click.Command | None = cli
        context = click.Context(cli)
        while words and isinstance(command, click.Group) and re.match(r"[a-z]", words[0]):
            context = click.Context(command, parent=context)
            command = command.get_command(context, words.pop(0))
        assert command is not None, (name, words)
        known = {option for param in command.params for option in param.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, (name, words)


@every_alert
def test_commands_of_kubectl_are_there(name: str) -> None:
    for words in commands(page(name), "kubectl"):
        flags = [word for word in words if word.startswith("--")]
        plain = [word for word in words if not word.startswith("--") and word != "muster-system"]
        verb, objects = plain[0], plain[1:]
        assert verb in ("get", "describe", "logs"), words
        assert {flag.partition("=")[0] for flag in flags} <= options(verb), words
        if "--raw" not in words and objects:
            kinds = objects[0].split("/")[0] if "/" in objects[0] else objects[0]
            assert set(kinds.split(",")) <= _KINDS | {"deployment"}, words
            if "/" in objects[0]:
                assert objects[0].partition("/")[2] in named_in_chart(), words


@every_alert
def test_commands_of_amtool_and_helm_are_there(name: str) -> None:
    for words in commands(page(name), "amtool"):
        assert words[:2] == ["silence", "add"], words
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= _AMTOOL
    for words in commands(page(name), "helm"):
        assert words[0] in ("upgrade", "rollback"), words


@every_alert
def test_values_of_the_chart_that_a_page_names_are_there(name: str) -> None:
    values = (chart() / "files/defaults.yaml").read_text(encoding="utf-8")
    parts = "health|fleet|data|network|readCache|metrics|networkPolicy|teams|resources|telemetry"
    for path in re.findall(rf"`((?:{parts})\.[\w.]+)`", page(name)):
        for key in path.split("."):
            below_config = path.partition(".config.")[1]
            assert below_config or re.search(rf"^ *{key}:", values, re.MULTILINE), (name, path)


@every_alert
def test_metrics_that_a_page_names_are_in_the_reference(name: str) -> None:
    reference = (PAGES.parents[0] / "reference/metrics.md").read_text(encoding="utf-8")
    for metric in re.findall(r"\bmuster_[a-z_]+", page(name)):
        assert f"`{re.sub('_(bucket|sum|count)$', '', metric)}`" in reference, (name, metric)


def test_each_threshold_is_used() -> None:
    used = {name for same in by_name().values() for alert in same for name in alert.thresholds()}
    assert used == {each.name for each in THRESHOLDS}


@cache
def options(verb: str) -> frozenset[str]:
    """Options of a command of kubectl, which does not ask a cluster for its help."""
    texts = [
        subprocess.run([kubectl_program(), *words], capture_output=True, text=True, timeout=60).stdout
        for words in ((verb, "--help"), ("options",))
    ]
    return frozenset(re.findall(r"--[a-z-]+", "".join(texts)))


@cache
def named_in_chart() -> frozenset[str]:
    """Names of objects of the chart."""
    templates: list[Path] = sorted(chart().glob("templates/*.yaml"))
    return frozenset(name for file in templates for name in re.findall(r"name: (muster[\w-]*)", file.read_text()))
