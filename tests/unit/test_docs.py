"""What the documentation names is there: pages, headings, targets of make, modules, commands and their options."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from muster.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def typed(page: Path, program: str) -> Iterator[str]:
    """What the page has people type after `program`, in text and in blocks of code, without comments."""
    for span in re.findall(rf"(?:`|^\$ |^){re.escape(program)} ([^`\n]*)", page.read_text(), re.MULTILINE):
        yield span.split(" #")[0].strip()


def anchors(page: Path) -> set[str]:
    """The headings as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@every_page
def test_targets_of_make_are_there(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {line.split()[0] for line in typed(page, "make")} <= set(targets)


@every_page
def test_modules_to_run_are_there(page: Path) -> None:
    for line in typed(page, "python -m"):
        assert importlib.util.find_spec(line.split()[0]) is not None, line


@every_page
def test_commands_have_the_options_they_are_shown_with(page: Path) -> None:
    for line in typed(page, "muster"):
        name, *words = line.partition(" -- ")[0].split()  # then come options of the program
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, line
        params = list(command.params)
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = [command.get_command(context, each) for each in command.list_commands(context)]
            params += [param for each in below if each is not None for param in each.params]
        known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help"}, line


def test_the_readme_leads_to_every_page() -> None:
    """Directly, or by way of the page that lists the pages of a folder."""
    lists = [ROOT / "README.md", *sorted(ROOT.glob("docs/*/README.md"))]
    linked = {
        (page.parent / link).resolve() for page in lists for link in re.findall(r"\]\(([^)\s#]+)", page.read_text())
    }
    assert [page for page in PAGES if page not in linked and page != ROOT / "README.md"] == []


def test_tests_that_pages_name_are_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    texts = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    assert named <= {name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
