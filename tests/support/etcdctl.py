"""Runs command lines with etcdctl: a stand-in with its arguments and variables that uses etcd's JSON gateway.

The control plane's build has etcd without etcdctl. The stand-in knows the subcommands that Muster prints.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run_printed(commands: Sequence[str], folder: Path, pki: Path, **variables: str) -> str:
    """Run printed lines in one shell, with the client certificate of a control plane in `pki`; returns their output."""
    wrapper = folder / "etcdctl"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    wrapper.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "ETCDCTL_CACERT": str(pki / "etcd-ca.crt"),
        "ETCDCTL_CERT": str(pki / "etcd-client.crt"),
        "ETCDCTL_KEY": str(pki / "etcd-client.key"),
        **variables,
    }
    script = "\n".join(["set -eu", *commands])
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _call(url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, context=_context(), timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def main(arguments: Sequence[str]) -> None:
    """Run one command."""
    options = dict(word[2:].split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    url = options["endpoints"]
    words = [word for word in arguments if not word.startswith("-")]
    if words[:2] == ["endpoint", "health"]:
        with urllib.request.urlopen(url + "/health", context=_context(), timeout=30) as answer:
            print(answer.read().decode())
    elif words[:2] == ["endpoint", "status"]:
        print(
            json.dumps([{"Status": _call(url, "/v3/maintenance/status", {})}]).replace('"revision": "', '"revision":')
        )
    elif words[0] in ("get", "del") and "--prefix" in arguments:
        prefix = words[1].encode()
        span = {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + bytes([prefix[-1] + 1]))}
        if words[0] == "del":
            print(_call(url, "/v3/kv/deleterange", span).get("deleted", "0"))
        else:
            assert "--count-only" in arguments
            print(f'"Count" : {_call(url, "/v3/kv/range", span | {"count_only": True}).get("count", "0")}')
    elif words[0] == "compact":
        _call(url, "/v3/kv/compaction", {"revision": words[1]})
    elif words[0] == "defrag":
        _call(url, "/v3/maintenance/defragment", {})
    elif words == ["alarm", "disarm"]:
        for alarm in _call(url, "/v3/maintenance/alarm", {"action": "GET"}).get("alarms", ()):
            _call(url, "/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    else:
        sys.exit(f"unknown command: {arguments}")


def _context() -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=os.environ["ETCDCTL_CACERT"])
    tls.load_cert_chain(os.environ["ETCDCTL_CERT"], os.environ["ETCDCTL_KEY"])
    return tls


if __name__ == "__main__":
    main(sys.argv[1:])
