from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from muster.trainingjobs.supervisor.attempts.programs import CannotStart
from muster.trainingjobs.supervisor.remoteshell import sshd
from muster.trainingjobs.supervisor.remoteshell.ed25519 import public_key
from muster.trainingjobs.supervisor.remoteshell.sshkeys import client_key, host_key

KEY = bytes(range(32))


@given(st.binary(min_size=32, max_size=32))
def test_public_keys_are_those_of_a_library(seed: bytes) -> None:
    assert public_key(seed) == Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


@given(st.binary(min_size=16, max_size=64), st.integers(1, 1000))
def test_keys_are_read_by_a_library_as_openssh_writes_them(attempt_key: bytes, attempt: int) -> None:
    key = host_key(attempt_key, "uid", attempt, "10.0.0.1")
    private = serialization.load_ssh_private_key(key.private.encode(), None)
    assert isinstance(private, Ed25519PrivateKey)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    assert private.public_key().public_bytes(*form).decode() == key.public


def test_each_purpose_job_attempt_and_address_has_a_key_of_its_own_and_all_nodes_the_same() -> None:
    keys = [
        client_key(KEY, "uid", 1),
        client_key(KEY, "uid", 2),
        client_key(KEY, "uid2", 1),
        client_key(bytes(32), "uid", 1),
        host_key(KEY, "uid", 1, "10.0.0.1"),
        host_key(KEY, "uid", 1, "10.0.0.2"),
        host_key(KEY, "uid", 2, "10.0.0.1"),
    ]
    assert len({key.public for key in keys}) == len(keys)
    assert client_key(KEY, "uid", 1).private == keys[0].private


def test_image_without_sshd_gets_an_installation_hint(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="install the image's package openssh-server"):
        sshd.find("sshd", "openssh-server", {"PATH": str(tmp_path)}, (str(tmp_path),))


def test_sshd_errors_about_its_settings_are_reported(tmp_path: Path) -> None:
    program = tmp_path / "sshd"
    program.write_text("#!/bin/sh\necho 'Privilege separation user sshd does not exist'\nexit 255\n")
    program.chmod(0o755)
    with pytest.raises(CannotStart, match="will not start: Privilege separation user sshd does not exist"):
        sshd.check([str(program), "-t"], os.environ)


def test_the_folder_of_sshds_unprivileged_half_is_made(tmp_path: Path) -> None:
    folder, program = tmp_path / "run" / "sshd", tmp_path / "sshd"
    program.write_text(
        f"#!/bin/sh\n[ -d {folder} ] && exit 0\necho 'Missing privilege separation directory: {folder}'\nexit 255\n"
    )
    program.chmod(0o755)
    sshd.check([str(program), "-t"], os.environ)
    assert folder.is_dir()
