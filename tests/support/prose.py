"""Text that readers of the repository meet: words of any file, and the sentences of pages and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CODE_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# A bullet, a heading, a row of a table, or an entry of a docstring's `Attributes:` begins a new paragraph.
NEW_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |#|\||>))|\n(?= *[\w*]+(?:, \w+)*:\s)|(?<=:)\n")
TABLE_OF_DOCSTRING = re.compile(r"\S {3,}\S|──►")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs)\.")


def words_of(text: str) -> str:
    """The text on one line: names are split at `_`, and lines of a comment or of a literal are joined."""
    text = re.sub(r"\n\s*#:? ?", " ", text)
    text = re.sub(r"[\"']\s*\n\s*[rbf]{0,2}[\"']", "", text)
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", text)
    return re.sub(r"[\s_]+", " ", text)


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a page or docstring. Blocks of code and tables are left out; inline code is one word."""
    text = CODE_BLOCK.sub("\n\n", markdown)
    text = LINK.sub(r"\1", INLINE_CODE.sub("`x`", text))
    text = ABBREVIATION.sub(r"\1", text)
    for paragraph in NEW_PARAGRAPH.split(text):
        if not paragraph.lstrip().startswith(("|", "#", "<")) and not TABLE_OF_DOCSTRING.search(paragraph):
            yield from SENTENCE_END.split(" ".join(paragraph.split()))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring."""
    for node in statements(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module and all statements in it, without their expressions, which are most of the nodes."""
    yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            yield from statements(inner)


def length(sentence: str) -> int:
    """Words of the sentence."""
    return sum(1 for word in sentence.split() if any(letter.isalnum() for letter in word))


def files(root: Path, *folders: str) -> list[Path]:
    """Python files, pages and templates below the folders, without what tools leave behind."""
    found = (file for folder in folders for file in sorted((root / folder).rglob("*")))
    return [
        file
        for file in found
        if file.suffix in {".py", ".md", ".yaml", ".yml", ".txt", ".tpl", ".sh"} and "__pycache__" not in file.parts
    ]
