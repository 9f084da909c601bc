"""`muster health check`: the three texts of node health are checked before a cluster reads them."""

from __future__ import annotations

import io
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.cli.errors import BadInput, ExitCode
from muster.cli.health import check
from muster.cli.health.texts import KINDS, texts
from muster.cli.main import run
from muster.fleet.preflight import config as preflight
from muster.fleet.remediation import config as remediation

POLICY = "version: 1\nrevision: mine\n"


def verdict_on(text: str) -> str:
    """The text that a module's documentation shows."""
    return text.split("\n\n", 1)[1]


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["health", "check", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_all_three_texts_are_recognized_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = {
        "policy.yaml": POLICY,
        "remediation.yaml": verdict_on(remediation.__doc__ or ""),
        "my-preflight.yml": verdict_on(preflight.__doc__ or ""),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    code, out, err = checked(capsys, *(str(tmp_path / name) for name in written))
    assert (code, err) == (ExitCode.DONE, "")
    policy, ladder, tests = out.splitlines()
    assert "policy.yaml: policy mine: " in policy
    assert "remediation.yaml: remediation: mode observe" in ladder
    assert "my-preflight.yml: preflight: level 1 at boot" in tests


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POLICY, "policy mine"),
        ("mode: act\npause: true\n", "remediation: mode act, paused"),
        ("image: x\natOnce: 3\n", "preflight: level 1 at boot, 2 again, 2 on suspicion, 3 at once, image x"),
    ],
)
def test_without_a_name_the_fields_tell(
    text: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, _ = checked(capsys, "-")
    assert code == ExitCode.DONE
    assert out.startswith(f"<stdin>: {said}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "mod: act\nbreaker:\n  nodse: 3\n  share: 10%\n",
            ["x.yaml:1:1: mod: unknown field; did you mean mode?", "x.yaml:3:3: breaker.nodse: unknown field"],
        ),
        ("mode: observ\n", ["x.yaml:1:7: mode: Invalid enum value 'observ'; did you mean observe?"]),
        ("mode: act\nbreaker: {share: half}\n", ["x.yaml:2:11: breaker.share: 'half' is neither a number nor a share"]),
        ("image: a\nlevels: {boot: 9}\natOnce: no\n", ["x.yaml:2:16: levels.boot: ", "x.yaml:3:9: atOnce: "]),
        ("image: a\ntolerations: [{kye: a}]\n", ["x.yaml:2:16: tolerations[0].kye: unknown field; did you mean key?"]),
        (POLICY + "codes:\n  xid:\n    79: {action: x}\n    80: {job: y}\n", ["x.yaml:5:18: ", "x.yaml:6:15: "]),
        (POLICY + "revision: [\n", ["x.yaml:4:1: not YAML"]),
        ("a: 1\n", ["neither its name nor its fields say what it configures", "--as remediation"]),
        ("", ["neither its name nor its fields"]),
        ("kind: ConfigMap\ndata: {}\n", ["neither its name nor its fields"]),
        ("health: {}\n", ["neither its name nor its fields"]),
        (
            "kind: ConfigMap\ndata:\n  required: 'true'\n  preflight.yaml: |\n\n    image: a\n    atOnec: 3\n",
            ["x.yaml:7:5: atOnec: unknown field; did you mean atOnce?"],
        ),
        (
            'kind: ConfigMap\ndata:\n  remediation.yaml: "mode: act\\npuase: true\\n"\n',
            ["x.yaml: remediation.yaml:2:1: puase: unknown field; did you mean pause?"],
        ),
        (
            "replicas: 2\nhealth:\n  preflight: {config: {image: a, atOnec: 1}}\n  remediation:\n    config:\n"
            "      mode: acct\n    policy:\n      version: 1\n      revison: mine\n",
            [
                "x.yaml:3:34: atOnec",
                "x.yaml:6:13: mode: ",
                "x.yaml:9:7: revison: unknown field; did you mean revision?",
            ],
        ),
        ("\x07", ["x.yaml:1:1: not YAML: character U+0007"]),
    ],
)
def test_error_is_reported_at_its_column(
    text: str, says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(text)
    code, out, err = checked(capsys, str(tmp_path / "x.yaml"))
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert err.startswith("error: ")
    for each in says:
        assert each in err


def test_one_bad_file_of_several_is_enough_and_all_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {"a.yaml": "mode: acct\n", "b.yaml": "mode: act\n", "c.yaml": "image: a\nimages: b\n"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    code, out, err = checked(capsys, *(str(tmp_path / name) for name in written))
    assert code == ExitCode.BAD_INPUT
    assert "b.yaml: remediation: mode act" in out
    assert "a.yaml:1:7: mode" in err
    assert "c.yaml:2:1: images: unknown field; did you mean image?" in err


def test_output_and_input_of_helm_are_searched_for_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = (
        "kind: Deployment\nspec: {}\n---\nkind: ConfigMap\ndata:\n  remediation.yaml: |\n    mode: observe\n"
        f"  policy.yaml: |\n{textwrap.indent(POLICY, '    ')}---\nkind: ConfigMap\ndata:\n"
        "  required: 'true'\n  preflight.yaml: |\n    image: a\n"
    )
    values = "health: {enabled: true, preflight: {config: {image: b}}, remediation: {policy: {}}}\n"
    (tmp_path / "printed").write_text(printed)
    (tmp_path / "preflight-values.yaml").write_text(values)
    code, out, _ = checked(capsys, str(tmp_path / "printed"), str(tmp_path / "preflight-values.yaml"))
    assert code == ExitCode.DONE
    said = [line.partition(": ")[2].partition(":")[0] for line in out.splitlines()]
    assert said == ["policy mine", "remediation", "preflight", "preflight"]


def test_kind_of_a_text_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_text("")
    assert checked(capsys, "--as", "remediation", str(tmp_path / "x.yaml"))[0] == ExitCode.DONE
    code, _, err = checked(capsys, "--as", "preflight", str(tmp_path / "x.yaml"))
    assert code == ExitCode.BAD_INPUT
    assert "x.yaml:1:1: image: missing" in err


@pytest.mark.parametrize("name", ["no-such-file", ".", "binary"])
def test_unreadable_file_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    code, _, err = checked(capsys, str(tmp_path / name))
    assert code == ExitCode.BAD_INPUT
    assert err.startswith("error: ")


@given(st.text(alphabet="{}[]:-,&*|% \n\"'#!abcemodgilp01?>", max_size=60), st.sampled_from([None, *KINDS]))
@example("health: {preflight: {config: &a {image: *a}}}", None)
@example("kind: ConfigMap\ndata: {policy.yaml: |\n", None)
@example("kind: ConfigMap\ndata:\n  policy.yaml: |2\n    a: 1\n", None)
@example("codes: {xid: {79: &a [*a]}}", "policy")
@example("rules: [{name: {}}]\npools: [3]", "policy")
@example("tolerations: {a: 1}\nresources: [1]", "preflight")
@settings(deadline=None)
def test_no_text_does_anything_but_pass_or_be_refused(text: str, kind: str | None) -> None:
    with suppress(BadInput):
        for which, source, each in texts("x", text, kind):
            assert check._check(which, each, source) != ("", "")
