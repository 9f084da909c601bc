"""Files that people hand in: where what is wrong is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.cli.errors import BadInput, ExitCode
from muster.cli.main import run
from muster.cli.teams.teams import read_config
from muster.teams.config import parse, parse_manifest
from muster.teams.yaml_reader import TeamsConfigError

TEXT = "allocations:\n- {nodeSelector: {gpu: h100}, team: vision, amount: 40}\n"
BAD = TEXT.replace("40", "-40")


def config_map(text: str) -> str:
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: muster-teams}}\ndata:\n  teams.yaml: |\n{indented}"


def test_the_text_alone_and_a_config_map_mean_the_same() -> None:
    assert parse_manifest(TEXT) == parse_manifest(config_map(TEXT)) == parse(TEXT)
    assert parse_manifest("") == parse("")


@pytest.mark.parametrize(
    ("text", "line"),
    [(BAD, 2), (config_map(BAD), 7), (f"kind: ConfigMap\ndata: {{teams.yaml: '{BAD.splitlines()[1]}'}}", 2)],
)
def test_lines_are_those_of_the_file(text: str, line: int) -> None:
    with pytest.raises(TeamsConfigError) as raised:
        parse_manifest(text)
    assert [each.line for each in raised.value.problems] == [line]


def test_a_config_map_without_the_key_is_refused() -> None:
    with pytest.raises(TeamsConfigError, match=r"no key teams\.yaml; the data has teams\.yml"):
        parse_manifest("kind: ConfigMap\ndata: {teams.yml: x}")


def test_every_problem_is_printed_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("teamKey: a b\n" + BAD)
    assert run(["teams", "plan", "-f", str(file)]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert f"{file}: line 1: 'a b' is not a label key" in said
    assert f"{file}: line 3: amount '-40' is negative; use 0 or more nodes" in said


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_config(str(tmp_path / "none.yaml"))
