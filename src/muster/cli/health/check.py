"""`muster health check`: checks the configuration files of node health without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.cli.errors import BadInput, ExitCode
from muster.cli.input_file import read_text

if TYPE_CHECKING:
    import yaml

    from muster.fleet.health.policy import Policy

_PAGES: Final = {
    "policy": "docs/health.md",
    "remediation": "docs/remediation.md",
    "preflight": "docs/preflight.md",
}
"""By kind of text (`healthtexts.KINDS`), the page that describes its fields."""
_STDIN: Final = "<stdin>"


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--as", "kind", type=click.Choice(list(_PAGES)), help="Kind of the files, if neither name nor fields show it."
)
def command(files: tuple[str, ...], kind: str | None) -> int:
    """Print every error in a policy.yaml, remediation.yaml or preflight.yaml with its line, and what to change.

    It needs no cluster. The kind of a FILE follows from its name, or else from its fields. A FILE may also hold
    ConfigMaps, as kubectl or helm print them, or values of the chart. - is standard input.
    """
    from muster.cli.health.texts import texts

    problems, pages = [], []
    for file in files:
        for which, source, text in texts(_STDIN if file == "-" else file, read_text(file), kind):
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
    from muster.api.configtext import ConfigTextError
    from muster.fleet.health.policytext import read_policy

    text = read_text(file)
    try:
        return read_policy(text, Path(file).name)
    except ConfigTextError as error:
        raise BadInput(f"the policy cannot be used\n{error}", f"{_PAGES['policy']} describes the fields") from error


def _check(kind: str, text: str | yaml.Node, file: str) -> tuple[str, str]:
    """Return (a summary of the text, ""), or ("", its errors)."""
    from muster.api.configtext import ConfigTextError
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
