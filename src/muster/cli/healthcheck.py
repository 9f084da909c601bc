"""`muster health check`: the texts that node health is configured by, before a cluster reads them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.cli.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from muster.fleet.health.policy import Policy

_PAGES: Final = {
    "policy": "docs/health.md",
    "remediation": "docs/remediation.md",
    "preflight": "docs/preflight.md",
}
"""By what a text is of, the page with its fields; in the ConfigMaps its key is that name with `.yaml`."""
_NEARLY: Final = 0.5
"""What a misspelt field says of which text it is in, beside 1 for one that is spelt right."""
_STDIN: Final = "<stdin>"


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--as", "kind", type=click.Choice(list(_PAGES)), help="What they are, where neither name nor fields say so."
)
def command(files: tuple[str, ...], kind: str | None) -> int:
    """Say every line of policy.yaml, remediation.yaml or preflight.yaml that is wrong, and what to change.

    No cluster is asked. What a FILE is follows from its name, or else from its fields; - is standard input.
    """
    problems, pages = [], []
    for file in files:
        text, source = read_text(file), _STDIN if file == "-" else file
        which = kind or _kind_of(source, text)
        said, wrong = _check(which, text, source)
        if wrong:
            problems.append(wrong)
            pages.append(_PAGES[which])
        else:
            click.echo(f"{source}: {said}")
    if problems:
        hint = f"{' and '.join(dict.fromkeys(pages))} say what may be there"
        raise BadInput("this cannot be used\n" + "\n".join(problems), hint)
    return ExitCode.DONE


def read_policy_file(file: str) -> Policy:
    """Read a policy. Raises BadInput with each line that is wrong."""
    from muster.fleet.configtext import ConfigTextError
    from muster.fleet.health.policytext import read_policy

    text = read_text(file)
    try:
        return read_policy(text, Path(file).name)
    except ConfigTextError as error:
        raise BadInput(f"the policy cannot be used\n{error}", f"{_PAGES['policy']} describes the fields") from error


def read_text(file: str) -> str:
    """Read a file, or standard input for `-`. Raises BadInput."""
    try:
        return sys.stdin.buffer.read().decode() if file == "-" else Path(file).read_bytes().decode()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is no text: {error.reason} at byte {error.start}", "YAML in UTF-8 is wanted") from error


def _check(kind: str, text: str, file: str) -> tuple[str, str]:
    """Return (what the text says, ""), or ("", what is wrong with it)."""
    from muster.fleet.configtext import ConfigTextError
    from muster.fleet.health.policytext import read_policy
    from muster.fleet.preflight.config import parse_config as preflight
    from muster.fleet.remediation.config import parse_config as remediation

    try:
        if kind == "policy":
            policy = read_policy(text, file)
            codes = sum(len(entries) for entries in policy.codes.values())
            rules = f"{len(policy.rules)} rules, {len(policy.pools)} pools"
            return f"policy {policy.revision}: {codes} codes, {rules}", ""
        if kind == "remediation":
            ladder = remediation(text, file)
            return f"remediation: mode {ladder.mode}{', paused' * ladder.pause}", ""
        tests = preflight(text, file)
        levels = f"level {tests.levels.boot} at boot, {tests.levels.retest} again, {tests.levels.suspect} on suspicion"
        return f"preflight: {levels}, {tests.at_once} at once, image {tests.image or 'of Muster'}", ""
    except ConfigTextError as error:
        return "", str(error)


def _kind_of(source: str, text: str) -> str:
    """What the text is: by the file's name, else by its fields. Raises BadInput where neither tells."""
    named = [kind for kind in _PAGES if kind in Path(source).name]
    if len(named) == 1:
        return named[0]
    fields = _fields(source, text)
    points = {kind: sum(map(_points, fields, [names] * len(fields))) for kind, names in _known().items()}
    best = max(points.values())
    likely = [kind for kind, found in points.items() if found == best]
    if best and len(likely) == 1:
        return likely[0]
    hint = f"say which with --as {', --as '.join(_PAGES)}"
    if "kind" in fields:
        hint = "of an object only the text below its key in data is wanted, such as policy.yaml"
    elif "health" in fields:
        hint = "of the chart's values only what is below health.preflight.config and its like is wanted"
    raise BadInput(f"{source}: neither its name nor its fields say what it configures", hint)


def _fields(source: str, text: str) -> list[str]:
    import yaml

    from muster.api.marked import NotYaml, document
    from muster.fleet.configtext import place_text

    try:
        root = document(text)
    except NotYaml as error:
        raise BadInput(f"{place_text(error.place, source)}not YAML: {error.what}", "mend it") from None
    return [str(key.value) for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []


def _known() -> Mapping[str, list[str]]:
    from msgspec import Struct
    from msgspec.structs import fields

    from muster.fleet.health.policyfields import PolicyText
    from muster.fleet.preflight.config import PreflightConfig
    from muster.fleet.remediation.config import RemediationConfig

    structs: tuple[type[Struct], ...] = (PolicyText, RemediationConfig, PreflightConfig)
    return {kind: [each.encode_name for each in fields(struct)] for kind, struct in zip(_PAGES, structs, strict=True)}


def _points(field: str, known: list[str]) -> float:
    if field in known:
        return 1.0
    return _NEARLY if difflib.get_close_matches(field, known, n=1) else 0.0
