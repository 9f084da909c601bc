"""Which node, boot and driver this is: read off the token and /proc, whatever these hold."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.check import Host
from muster.agent.identity import Facts, facts
from muster.kube.nodetoken import node_of_token

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: gcc\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16-I3)\n"
    "GCC version:  gcc version 12.3.0\n"
)


def host(folder: Path, driver: str | None, gpus: int = 0) -> Host:
    proc = folder / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("0b3a\n")
    if driver is not None:
        (proc / "driver/nvidia").mkdir(parents=True)
        (proc / "driver/nvidia/version").write_text(driver)
    for number in range(gpus):
        (proc / f"driver/nvidia/gpus/0000:{number:02x}:00.0").mkdir(parents=True)
    return Host(proc=proc)


def bearer(claims: Any) -> str:
    parts = [msgspec.json.encode(part) for part in ({"alg": "ES256"}, claims)] + [b"signature"]
    return "Bearer " + ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize(
    ("driver", "version"),
    [(CLOSED, "535.183.01"), (OPEN, "570.124.06"), (None, ""), ("", ""), ("\x00\xff garbage", "")],
)
def test_the_driver_as_the_kernel_names_it(tmp_path: Path, driver: str | None, version: str) -> None:
    assert facts(host(tmp_path, driver, gpus=2)) == Facts(boot_id="0b3a", driver=version, gpus=2)


def test_a_machine_that_says_nothing_has_no_facts(tmp_path: Path) -> None:
    assert facts(Host(proc=tmp_path)) == Facts()


def test_the_node_is_read_off_a_pods_token() -> None:
    node = {"name": "node-7", "uid": "1f2e"}
    assert node_of_token(bearer({"kubernetes.io": {"namespace": "muster-system", "node": node}})) == ("node-7", "1f2e")


@pytest.mark.parametrize(
    "claims", [{}, {"kubernetes.io": {}}, {"kubernetes.io": {"node": None}}, {"kubernetes.io": "x"}, [], "x", None, 7]
)
def test_a_token_that_names_no_node_names_none(claims: Any) -> None:
    assert node_of_token(bearer(claims)) == ("", "")


@given(st.text(max_size=60))
def test_credentials_of_any_form_are_read_without_a_crash(authorization: str) -> None:
    assert node_of_token(authorization) == ("", "")
