"""Reads files and folders with dashboards and rules, whatever each file holds."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from muster.telemetry.usage.inputs.dashboards import dashboard_questions
from muster.telemetry.usage.inputs.question import Notes, Question
from muster.telemetry.usage.inputs.rules import Rule, document_rules, rule_mistakes
from muster.telemetry.usage.lexical import is_cut, words_of_text
from muster.telemetry.usage.query import Query
from muster.telemetry.usage.selection import EVERYTHING

SUFFIXES: Final = (".json", ".yaml", ".yml", ".rules")
WHOLE_FILE: Final = "(the whole file)"
"""Text of the question that stands for a file that cannot be parsed."""
_FILES_MAX: Final = 50_000
_BYTES_MAX: Final = 64 << 20
_SHOWN_MAX: Final = 5
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InputError(Exception):
    """An input cannot be read at all; the message says which and why."""


@dataclass
class FileInputs:
    """Queries and rules of files.

    Attributes:
        files: number of files that were read.
        questions: their queries, those of dashboards and of alerts of Grafana.
        rules: their rules of Prometheus.
        mistakes: entries among rules that are not rules, with the reason.
    """

    files: int = 0
    questions: list[Question] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def read_files(
    paths: Sequence[Path], others: Set[str], notes: Notes, progress: Callable[[str], None] = lambda stage: None
) -> FileInputs:
    """Read all files, and those in folders with a suffix of JSON or YAML.

    A file that cannot be parsed may use every word in it; one that is cut off may use everything.

    Args:
        paths: files and folders.
        others: names and UIDs of data sources of Grafana that are not this server.
        notes: gets what was not read, and why.
        progress: is called with the current stage.

    Raises:
        InputError: a path does not exist or cannot be read, or there are too many files.
    """
    inputs = FileInputs()
    for path in _files(paths, notes):
        inputs.files += 1
        progress(f"{inputs.files} files")
        _read_file(path, others, notes, inputs)
    return inputs


def _read_file(path: Path, others: Set[str], notes: Notes, inputs: FileInputs) -> None:
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > _BYTES_MAX:
        inputs.questions.append(_unread(name, {EVERYTHING}, f"is larger than {_BYTES_MAX >> 20} MiB"))
        return
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes it
        content = content.decode("utf-16", errors="replace").encode()
    if b"\0" in content:
        inputs.questions.append(_unread(name, {EVERYTHING}, "is not text"))
        return
    try:
        text = content.decode("utf-8-sig")
        documents = list(_documents(text))
        rules, questions = _contents(documents, name, others)
        inputs.mistakes += [mistake for each in documents for mistake in rule_mistakes(each, name)]
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        whole = content.decode(errors="replace")
        if any(map(is_cut, (whole, error.doc if isinstance(error, json.JSONDecodeError) else ""))):
            inputs.questions.append(_unread(name, {EVERYTHING}, f"is cut off: {why}"))
            return
        words = words_of_text(whole)
        inputs.questions.append(_unread(name, words, f"cannot be parsed: {why}"))
        return
    if not rules and not questions:
        notes.add(f"{name}: has neither a query nor a rule")
    inputs.rules += rules
    inputs.questions += questions


def _contents(documents: Sequence[Any], name: str, others: Set[str]) -> tuple[list[Rule], list[Question]]:
    rules = [rule for each in documents for rule in document_rules(each, name)]
    return rules, [question for each in documents for question in dashboard_questions(each, name, others)]


def _unread(name: str, selections: Set[Any], why: str) -> Question:
    return Question(WHOLE_FILE, name, Query(frozenset(selections), why))


def _documents(text: str) -> Iterator[Any]:
    if text.lstrip().startswith(("{", "[")):
        try:
            yield json.loads(text)
            return
        except ValueError:
            if text.lstrip().startswith("{{"):
                raise
    yield from yaml.load_all(text, Loader=_Loader)


def _files(paths: Sequence[Path], notes: Notes) -> Iterator[Path]:
    """Yield each file once. Folders mounted from ConfigMaps contain each file twice, by links."""
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            found = [path]
        else:
            found, others = _folder(path)
            for each in found:
                if not each.is_file():  # a pipe without a writer would be read for ever
                    raise InputError(f"cannot read {each}: it is not a file; remove it from the folder")
            if others:
                shown = ", ".join(sorted(each.name for each in others)[:_SHOWN_MAX])
                notes.add(f"{path}: {len(others)} files are neither JSON nor YAML: {shown}")
            if not found:
                raise InputError(f"{path} contains no file that ends in {', '.join(SUFFIXES)}")
        for each in found:
            try:
                real = each.resolve()
            except RuntimeError as error:
                raise InputError(f"cannot read {each}: its links lead back to themselves; mend the link") from error
            if real not in seen:
                seen.add(real)
                yield each
            if len(seen) > _FILES_MAX:
                raise InputError(f"{path}: more than {_FILES_MAX} files")


def _folder(folder: Path) -> tuple[list[Path], list[Path]]:
    found: list[Path] = []
    others: list[Path] = []
    seen: set[Path] = set()

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read {error.filename}: {error.strerror or error}") from error

    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(root).resolve()
        if real in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if each != ".git")
        for name in sorted(names):
            (found if name.endswith(SUFFIXES) else others).append(Path(root, name))
            if len(found) + len(others) > _FILES_MAX:
                raise InputError(f"{folder} contains more than {_FILES_MAX} files")
    return found, others
