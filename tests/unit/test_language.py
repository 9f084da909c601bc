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


def words_to_avoid() -> re.Pattern[str]:
    listed = RULES.read_text().partition("\nWords to avoid: ")[2].partition("\n\n")[0]
    words = [word.replace(" ", r"\s") for word in re.findall(r"`([a-z ]+)`", listed)]
    assert len(words) >= 15
    return re.compile(rf"\b(?!(?:{'|'.join(ALLOWED_PHRASES)})\b)({'|'.join(words)})s?\b", re.IGNORECASE)


def pages() -> list[Path]:
    return [ROOT / "README.md", *(file for file in files(ROOT, "docs", "examples") if file.suffix == ".md")]


@pytest.mark.slow
def test_texts_and_names_avoid_the_listed_words() -> None:
    avoid = words_to_avoid()
    found: list[str] = []
    for file in [ROOT / "README.md", *files(ROOT, *FOLDERS)]:
        if file not in (RULES, Path(__file__)):
            text = words_of(file.read_text())
            for hit in avoid.finditer(text):
                excerpt = text[max(0, hit.start() - 30) : hit.end() + 30]
                found.append(f"{file.relative_to(ROOT)}: ...{excerpt}...")
    assert found == [], "rewrite these texts, or rename these names"


def test_names_of_tests_do_not_begin_with_a_clause() -> None:
    """A name says behaviour and outcome: `expired_token_is_refused`, not `what_has_expired_is_refused`."""
    clause = re.compile(r"\bdef (test_(?:what|who|whose|whoever|whatever|whichever)_\w+)")
    assert [name for file in files(ROOT, "tests") for name in clause.findall(file.read_text())] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_pages_are_short(page: Path) -> None:
    assert [s for s in sentences(page.read_text()) if length(s) > LONGEST_SENTENCE] == []


@pytest.mark.slow
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
