"""The language rules of docs/dev/CONTRIBUTING.md: words to avoid, length of sentences, length of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.prose import docstrings, files, length, sentences, words_of

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs/dev/CONTRIBUTING.md"
FOLDERS = ("src", "fuzz", "bench", "tests", "docs", "deploy", "examples", "tools")
LONGEST_SENTENCE = 30
LONGEST_LINE = 110
GENERATED = re.compile(r"^<!-- (Written|Generated) by python -m", re.MULTILINE)
# "there is no X" is plain English, and so is "is no longer"; "this is no X" is not.
ALLOWED_PHRASES = (r"(?<=there )is no", r"(?<=there )are no", "is no longer", "are no longer")
# Folders whose old texts are not rewritten yet, with the number of hits left. A number may only fall.
LEFT: dict[str, int] = {
    "docs/track-record.md": 1,
    "src/muster/fleet": 25,
    "src/muster/scheduler": 51,
    "src/muster/trainingjobs": 3,
    "tests/scenarios/admission": 13,
    "tests/scenarios/agent": 3,
    "tests/scenarios/apiserver": 4,
    "tests/scenarios/baddays": 7,
    "tests/scenarios/conftest.py": 1,
    "tests/scenarios/deploy": 14,
    "tests/scenarios/fleet": 8,
    "tests/scenarios/kube": 9,
    "tests/scenarios/kubelet": 6,
    "tests/scenarios/preflight": 5,
    "tests/scenarios/remediation": 18,
    "tests/scenarios/scheduler": 37,
    "tests/scenarios/sim": 1,
    "tests/scenarios/teams": 12,
    "tests/scenarios/trainingjobs": 22,
    "tests/sim/fleetmutants.py": 5,
    "tests/sim/healthmutants.py": 8,
    "tests/sim/mutants.py": 4,
    "tests/sim/test_many.py": 1,
    "tests/sim/test_placechecks.py": 1,
    "tests/support/controlplane.py": 2,
    "tests/support/handingout.py": 2,
    "tests/support/kmsgdevice.py": 1,
    "tests/support/supervisor_stub.py": 1,
    "tests/support/virtualreplicas.py": 1,
    "tests/system/test_cli_jobs.py": 2,
    "tests/system/test_supervisor.py": 3,
    "tests/unit/admission": 2,
    "tests/unit/agent": 56,
    "tests/unit/bench": 2,
    "tests/unit/cli": 7,
    "tests/unit/embedded": 1,
    "tests/unit/fleet": 21,
    "tests/unit/gputest": 3,
    "tests/unit/kube": 12,
    "tests/unit/preflight": 7,
    "tests/unit/remediation": 35,
    "tests/unit/scheduler": 92,
    "tests/unit/sdk": 1,
    "tests/unit/sim": 17,
    "tests/unit/supervisor": 1,
    "tests/unit/teams": 14,
    "tests/unit/trainingjobs": 34,
}


def words_to_avoid() -> re.Pattern[str]:
    listed = RULES.read_text().partition("\nWords to avoid: ")[2].partition("\n\n")[0]
    words = [word.replace(" ", r"\s") for word in re.findall(r"`([a-z ]+)`", listed)]
    assert len(words) >= 15
    return re.compile(rf"\b(?!(?:{'|'.join(ALLOWED_PHRASES)})\b)({'|'.join(words)})\b", re.IGNORECASE)


def folder(file: Path) -> str:
    """The first three parts of the path, such as `src/muster/teams`."""
    return "/".join(file.relative_to(ROOT).parts[:3])


def pages() -> list[Path]:
    return [ROOT / "README.md", *(file for file in files(ROOT, "docs", "examples") if file.suffix == ".md")]


def test_texts_and_names_avoid_the_listed_words() -> None:
    avoid = words_to_avoid()
    found: dict[str, list[str]] = {}
    for file in [ROOT / "README.md", *files(ROOT, *FOLDERS)]:
        if file not in (RULES, Path(__file__)):
            text = words_of(file.read_text())
            for hit in avoid.finditer(text):
                excerpt = text[max(0, hit.start() - 30) : hit.end() + 30]
                found.setdefault(folder(file), []).append(f"{file.relative_to(ROOT)}: ...{excerpt}...")
    over = {place: hits for place, hits in found.items() if len(hits) > LEFT.get(place, 0)}
    assert over == {}, "rewrite these texts, or rename these names"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_pages_are_short(page: Path) -> None:
    assert [s for s in sentences(page.read_text()) if length(s) > LONGEST_SENTENCE] == []


def test_sentences_of_docstrings_are_short() -> None:
    long = [
        f"{file.relative_to(ROOT)}:{line}: {sentence}"
        for file in files(ROOT, "src", "fuzz", "bench", "tests")
        if file.suffix == ".py"
        for line, text in docstrings(file.read_text())
        for sentence in sentences(text)
        if length(sentence) > LONGEST_SENTENCE
    ]
    assert long == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page: Path) -> None:
    """Tables and generated pages are left out, and so are lines that are a single piece of code."""
    text = page.read_text()
    if not GENERATED.search(text):
        prose = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", text, flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in prose.splitlines() if not re.match(r"\s*(\||`[^`]+`$)", line)]
        assert [line for line in lines if len(line) > LONGEST_LINE] == []
