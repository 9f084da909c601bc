"""Reads kubeconfig files as kubectl does: several files are merged, and paths are relative to their file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from muster.kube.errors import ConfigError


def read_kubeconfigs(paths: list[Path]) -> dict[str, Any]:
    """Merge files. If entries have the same name, the first counts. Raises ConfigError."""
    return _merge([_load(path) for path in paths])


def is_there(path: Path) -> bool:
    """Return whether a kubeconfig exists. kubectl skips missing files of KUBECONFIG, but not unreadable ones.

    Raises:
        ConfigError: the system cannot tell, for example without permission.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return True


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        # The parser's own message may quote the file, with keys and tokens.
        raise ConfigError(f"kubeconfig {path} is not YAML") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"kubeconfig {path} is not a mapping")
    return _absolute(data, path.absolute().parent, path)


def _absolute(data: dict[str, Any], folder: Path, path: Path) -> dict[str, Any]:
    """Make the paths in a kubeconfig absolute: each file's are relative to itself."""
    for section, inner, keys in (
        ("clusters", "cluster", ("certificate-authority",)),
        ("users", "user", ("client-certificate", "client-key", "tokenFile")),
    ):
        for entry in data.get(section) or ():
            if not isinstance(entry, dict) or not isinstance(entry.get(inner, {}), dict):
                raise ConfigError(f"kubeconfig {path}: an entry of {section!r} is not a mapping")
            body = entry.setdefault(inner, {})
            for key in keys:
                if body.get(key):
                    body[key] = str(folder / body[key])
            command = (body.get("exec") or {}).get("command", "")
            if os.sep in command:
                body["exec"]["command"] = str(folder / command)
    return data


def _merge(files: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"current-context": "", "clusters": [], "contexts": [], "users": []}
    for data in files:
        merged["current-context"] = merged["current-context"] or data.get("current-context") or ""
        for section in ("clusters", "contexts", "users"):
            names = {entry["name"] for entry in merged[section]}
            merged[section] += [
                entry
                for entry in data.get(section) or ()
                if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry["name"] not in names
            ]
    return merged
