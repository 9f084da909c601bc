"""Files and folders with dashboards and rules: nothing is lost because a file cannot be parsed."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from muster.telemetry.usage.inputs import files
from muster.telemetry.usage.inputs.files import FileInputs, InputError, read_files
from muster.telemetry.usage.inputs.question import Notes

DASHBOARD = json.dumps({"title": "x", "panels": [{"title": "p", "targets": [{"expr": "a_total"}]}]})
RULES = "groups:\n- name: g\n  rules:\n  - {record: r, expr: a_total}\n  - {alert: A, expr: b_total > 0}\n"


def read(*paths: Path) -> tuple[FileInputs, list[str]]:
    notes = Notes()
    return read_files(paths, frozenset(), notes), notes.texts


def reads(inputs: FileInputs, name: str) -> bool:
    return any(each.reads_name(name) for question in inputs.questions for each in question.query.selections)


def test_folder_with_all_kinds_of_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "nodes.json").write_text(DASHBOARD, encoding="utf-8-sig")
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "provider.yaml").write_text("apiVersion: 1\nproviders: []\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "README.md").write_text("a")
    (tmp_path / "nodes.jsonnet").write_text("a")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.json").write_text("{")
    inputs, notes = read(tmp_path)
    assert (inputs.files, len(inputs.questions), len(inputs.rules)) == (4, 1, 2)
    assert [each.partition(": ")[2] for each in notes] == [
        "2 files are neither JSON nor YAML: README.md, nodes.jsonnet",
        "has neither a query nor a rule",
        "has neither a query nor a rule",
    ]


def test_files_of_a_mounted_configmap_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "a.json").write_text(DASHBOARD)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.json").symlink_to("..data/a.json")
    assert len(read(tmp_path, tmp_path / "a.json")[0].questions) == 1


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "a.json").write_text(DASHBOARD)
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "team").symlink_to(tmp_path / "team")
    (tmp_path / "boards" / "again").symlink_to(tmp_path / "boards")
    assert len(read(tmp_path / "boards")[0].questions) == 1


def test_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(DASHBOARD)
    (tmp_path / "team").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == tmp_path / "team":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"cannot read .*team: Permission denied"):
        read(tmp_path)


def test_file_in_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(DASHBOARD, encoding="utf-16")
    inputs, notes = read(tmp_path)
    assert ([each.text for each in inputs.questions], notes) == (["a_total"], [])


@pytest.mark.parametrize(
    "content", [gzip.compress(DASHBOARD.encode(), mtime=0), DASHBOARD.encode("utf-16-le")], ids=["gzip", "utf-16"]
)
def test_a_file_that_is_not_text_may_read_everything(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert reads(read(tmp_path)[0], "any")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("expr: sum({{ .Values.prefix }}_total)", {"a_total", "b_total"}),
        ("expr: sum(%s_total) # %(x)s", {"a_total", "b_total"}),
        ("expr: a_{{ .x }} / b_%(part)s", {"a_total", "b_total", "a_bytes"}),
        ("expr: a_total\nlegend: '{{pod}} b'", {"a_total"}),
        ("expr: rate({{ .Values.metric }}[5m])", {"a_total", "b_total", "a_bytes"}),
        ("expr: {{ .Values.expression }}", {"a_total", "b_total", "a_bytes"}),
    ],
)
def test_templates_in_a_file_that_cannot_be_parsed_stand_for_anything(
    text: str, names: set[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("{{- if .Values.x }}\n" + text + "\n{{- end }}\n")
    inputs, _ = read(tmp_path)
    assert {each for each in ("a_total", "b_total", "a_bytes") if reads(inputs, each)} == names


@pytest.mark.parametrize(
    "content",
    [
        DASHBOARD.encode() + b"}",
        DASHBOARD.replace(":", ";", 1).encode(),
        b"\xff" + DASHBOARD.encode(),
        b"{{- if .Values.x }}\nexpr: sum(a_total)\n{{- end }}\n",
        b"a: [a_total\n",
        b"x: 1\nx: !unknown a_total\n",
        json.dumps({"kind": "ConfigMap", "data": {"x.json": DASHBOARD + "}"}}).encode(),
        json.dumps({"kind": "ConfigMap", "data": {"x.yaml": "groups: [a_total"}}).encode(),
        b"[" * 100_000 + b'"a_total"' + b"]" * 100_000,
    ],
    ids=["too long", "separator", "not text", "template", "yaml", "tag", "inner json", "inner yaml", "deep"],
)
def test_every_word_of_a_file_that_cannot_be_parsed_may_be_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    inputs, _ = read(tmp_path / "a.yaml")
    [question] = inputs.questions
    assert question.query.doubt.startswith("cannot be parsed: ")
    assert reads(inputs, "a_total")
    assert not reads(inputs, "b_total")


@pytest.mark.parametrize(
    "content", [DASHBOARD[:-9], DASHBOARD[:-2], json.dumps({"kind": "ConfigMap", "data": {"x.json": DASHBOARD[:-9]}})]
)
def test_a_file_that_is_cut_off_may_read_everything(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    inputs, _ = read(tmp_path / "a.json")
    assert reads(inputs, "b_total")
    assert inputs.questions[0].query.doubt.startswith("is cut off: ")


@pytest.mark.parametrize("escape", ["\n", "\t", ">", '"', "é"])
def test_escapes_before_a_word_do_not_hide_it(escape: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x" 1: ' + json.dumps(f"sum({escape}a_total)").replace(">", "\\u003e") + "}")
    assert reads(read(tmp_path)[0], "a_total")


def test_a_file_that_cannot_be_parsed_and_asks_for_names_may_read_everything(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"expr": "{__name__=~\\"a.*\\"}"')
    assert reads(read(tmp_path)[0], "b_total")


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("node_${disk}_bytes", {"node_sda_bytes"}),
        ('a_total{x=~"$x", y="${y}"}[$__rate_interval]', {"a_total"}),
        ("sum($metric)", {"a_total", "node_sda_bytes", "other"}),
    ],
)
def test_variables_in_a_file_that_cannot_be_parsed_stand_for_anything(
    expr: str, names: set[str], tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"x" 1: ' + json.dumps(expr) + "}")
    inputs, _ = read(tmp_path)
    assert {name for name in ("a_total", "node_sda_bytes", "other") if reads(inputs, name)} == names


def test_a_file_that_is_too_large_may_read_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BYTES_MAX", 10)
    (tmp_path / "a.json").write_text(DASHBOARD)
    inputs, _ = read(tmp_path)
    assert reads(inputs, "anything")


def test_paths_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="contains no file"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "missing.json")


def test_pipes_in_folders_and_links_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "a.json")
    with pytest.raises(InputError, match=r"a\.json: it is not a file"):
        read(tmp_path / "folder")
    (tmp_path / "b.json").symlink_to("b.json")
    with pytest.raises(InputError, match=r"b\.json: its links lead back"):
        read(tmp_path / "b.json")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FILES_MAX", 2)
    for name in "abc":
        (tmp_path / f"{name}.json").write_text(DASHBOARD)
    with pytest.raises(InputError, match="more than 2 files"):
        read(tmp_path)
    with pytest.raises(InputError, match="more than 2 files"):
        read(*sorted(tmp_path.iterdir()))
