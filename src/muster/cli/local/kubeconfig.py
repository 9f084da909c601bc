"""Adds an embedded cluster's context to the user's kubeconfig, and removes it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from muster.cli.errors import CliError, ExitCode
from muster.kube.connection.config import kubeconfig_files
from muster.kube.connection.kubeconfig import is_there
from muster.kube.errors import ConfigError

_LOCK_WAIT_S = 10.0
_SECTIONS = ("clusters", "users", "contexts")


def user_kubeconfig() -> Path:
    """Return the file to which kubectl writes.

    It is the first existing file of KUBECONFIG, else the last one there, else ~/.kube/config.

    Raises:
        CliError: neither HOME nor KUBECONFIG names a file.
    """
    try:
        listed = kubeconfig_files()
        return next((path for path in listed if is_there(path)), listed[-1])
    except ConfigError as error:
        raise CliError(str(error), "set HOME or KUBECONFIG", ExitCode.NO_CLUSTER) from None


def remove_from_all(context: str) -> None:
    """Remove a context of add_context() from every file of KUBECONFIG, as the order of the files may have changed."""
    for path in kubeconfig_files():
        remove_context(path, context)


def check_writable(path: Path) -> None:
    """Check before the start of a cluster that its context can be added. Raises CliError."""
    with _locked(path):
        if is_there(path):
            _load(path)


def add_context(path: Path, source: Path, context: str) -> bool:
    """Copy the current context of `source`, with its cluster and user, into `path` under the name `context`.

    The current context of `path` is set only if it has none. Returns whether it is `context` now.

    Raises:
        CliError: `path` is not a kubeconfig, or another process keeps it locked.
    """
    document = _load(source)
    wanted = document["current-context"]
    chosen = next(entry["context"] for entry in document["contexts"] if entry["name"] == wanted)
    cluster = next(entry["cluster"] for entry in document["clusters"] if entry["name"] == chosen["cluster"])
    user = next(entry["user"] for entry in document["users"] if entry["name"] == chosen["user"])
    entries = {
        "clusters": {"name": context, "cluster": cluster},
        "users": {"name": context, "user": user},
        "contexts": {"name": context, "context": {**chosen, "cluster": context, "user": context}},
    }
    with _locked(path):
        target = _load(path) if path.exists() else _empty()
        for section, entry in entries.items():
            target[section] = [*_others(target, section, context), entry]
        target["current-context"] = target.get("current-context") or context
        _write(path, target)
        return bool(target["current-context"] == context)


def remove_context(path: Path, context: str) -> bool:
    """Remove a context of add_context(). Returns whether it existed. An empty file is removed."""
    if not path.exists():
        return False
    with _locked(path):
        target = _load(path)
        before = sum(len(target.get(section) or ()) for section in _SECTIONS)
        for section in _SECTIONS:
            target[section] = _others(target, section, context)
        left = sum(len(target[section]) for section in _SECTIONS)
        if left == before:
            return False
        if target.get("current-context") == context:
            target["current-context"] = ""
        if left:
            _write(path, target)
        else:
            path.unlink()
        return True


def _others(document: dict[str, Any], section: str, name: str) -> list[Any]:
    return [entry for entry in document.get(section) or () if entry.get("name") != name]


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = str(error).splitlines()[0]
        raise CliError(f"cannot read the kubeconfig {path}: {what}", exit_code=ExitCode.NO_CLUSTER) from None
    if document is None:
        return _empty()
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        raise CliError(f"{path} is not a kubeconfig", "set KUBECONFIG to one, or unset it", ExitCode.NO_CLUSTER)
    return document


def _empty() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Config"}


def _write(path: Path, document: dict[str, Any]) -> None:
    """Replace the file atomically, readable by its owner only. A symbolic link is kept."""
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(document, file, sort_keys=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _not_writable(path: Path, error: OSError) -> CliError:
    return CliError(
        f"the kubeconfig {path} cannot be written: {error.strerror}",
        "set KUBECONFIG to a file, or HOME to a folder, that you can write",
        ExitCode.NO_CLUSTER,
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold `<path>.lock`, the lock that kubectl uses (client-go, clientcmd.lockFile)."""
    if path.is_dir():
        raise CliError(
            f"the kubeconfig {path} is a folder", "set KUBECONFIG to a file, or unset it", ExitCode.NO_CLUSTER
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, error) from None
    lock = path.with_name(path.name + ".lock")
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                raise CliError(
                    f"{path} is locked: {lock} exists", "remove it if no kubectl is at work", ExitCode.CONFLICT
                ) from None
            time.sleep(0.05)
        except OSError as error:
            raise _not_writable(path, error) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
