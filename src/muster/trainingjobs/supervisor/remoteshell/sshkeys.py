"""Derives an attempt's ssh keys from the attempt's key, so that its nodes agree on them without messages.

Every secret key is HMAC-SHA256(attempt key, purpose): one for the client, one for each node's host key. A holder of the
attempt key (its supervisors and the controller) can compute them all; no other process can compute any. Keys of one
attempt reveal nothing about those of another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct

from .ed25519 import public_key

KIND = "ssh-ed25519"


class SshKey:
    """An Ed25519 key in OpenSSH's formats."""

    def __init__(self, attempt_key: bytes, *purpose: object) -> None:
        about = json.dumps(["ssh", *(str(part) for part in purpose)]).encode()
        self._seed = hmac.new(attempt_key, about, hashlib.sha256).digest()
        self._public = public_key(self._seed)

    @property
    def public(self) -> str:
        """As in authorized_keys and known_hosts: kind and base64 (RFC 8709, section 4)."""
        return KIND + " " + base64.b64encode(self._public_blob()).decode()

    @property
    def private(self) -> str:
        """As in a private key file without a passphrase (OpenSSH's PROTOCOL.key)."""
        check = self._public[
            :4
        ]  # two equal numbers show that the file was decrypted correctly; this file is not encrypted
        secret = check + check + _string(KIND.encode()) + _string(self._public)
        secret += _string(self._seed + self._public) + _string(b"")
        secret += bytes(range(1, 1 + -len(secret) % 8))
        whole = b"openssh-key-v1\0" + _string(b"none") + _string(b"none") + _string(b"") + struct.pack(">I", 1)
        text = base64.b64encode(whole + _string(self._public_blob()) + _string(secret)).decode()
        lines = [text[i : i + 70] for i in range(0, len(text), 70)]
        return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])

    def _public_blob(self) -> bytes:
        return _string(KIND.encode()) + _string(self._public)


def client_key(attempt_key: bytes, job_uid: str, attempt: int) -> SshKey:
    """The key of node rank 0's ssh; every node's sshd accepts it."""
    return SshKey(attempt_key, "client", job_uid, attempt)


def host_key(attempt_key: bytes, job_uid: str, attempt: int, address: str) -> SshKey:
    """The host key of the sshd at this address."""
    return SshKey(attempt_key, "host", job_uid, attempt, address)


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
