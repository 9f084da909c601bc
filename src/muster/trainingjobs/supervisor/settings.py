"""Settings from the pod's environment."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import ssl
import urllib.parse
from typing import Mapping

from .basics import UsageError


class Settings:
    """Settings from the pod's environment; UsageError names every variable that is missing or wrong."""

    REQUIRED = (
        "MUSTER_URL", "MUSTER_CA_DATA", "MUSTER_TOKEN_FILE", "MUSTER_NAMESPACE", "MUSTER_JOB", "MUSTER_JOB_UID",
        "MUSTER_SLOT", "POD_NAME", "POD_UID", "POD_IP",
    )  # fmt: skip

    def __init__(self, env: Mapping[str, str]) -> None:
        missing = [name for name in self.REQUIRED if not env.get(name)]
        if missing:
            raise UsageError(
                "missing in the environment: {}. A TrainingJob's pods carry them; was this pod made by Muster?".format(
                    ", ".join(missing)
                )
            )
        self.url = urllib.parse.urlsplit(env["MUSTER_URL"])
        if self.url.scheme != "https" or not self.url.hostname:
            raise UsageError("MUSTER_URL must be https://HOST[:PORT], not {!r}".format(env["MUSTER_URL"]))
        try:
            self.ca = base64.b64decode(env["MUSTER_CA_DATA"], validate=True).decode("ascii")
            self.tls = ssl.create_default_context(cadata=self.ca)
        except (ValueError, ssl.SSLError) as error:
            raise UsageError(f"MUSTER_CA_DATA must be base64 of PEM certificates: {error}") from error
        self.token_file = env["MUSTER_TOKEN_FILE"]
        try:
            self.address = str(ipaddress.ip_address(env["POD_IP"]))
        except ValueError as error:
            raise UsageError(f"POD_IP: {error}") from error
        self.job = env["MUSTER_NAMESPACE"] + "/" + env["MUSTER_JOB"]
        self.job_uid = env["MUSTER_JOB_UID"]
        self.slot = env["MUSTER_SLOT"]
        self.workdir = os.path.abspath(env.get("MUSTER_WORKDIR") or os.getcwd())
        self.checkpoint_dir = env.get("MUSTER_CHECKPOINT_DIR", "")
        self.checkpoint_root = env.get("MUSTER_CHECKPOINT_ROOT", "")
        self.checkpoint_from_job = env.get("MUSTER_CHECKPOINT_FROM_JOB", "")
        self.checkpoint_from_path = env.get("MUSTER_CHECKPOINT_FROM_PATH", "")
        self.data_url = env.get("MUSTER_DATA_URL", "")
        self.code_archive = env.get("MUSTER_CODE_ARCHIVE", "")
        self.code_url = env.get("MUSTER_CODE_URL", "")
        self.code_sha256 = env.get("MUSTER_CODE_SHA256", "").lower()
        if self.code_url and not re.fullmatch("[0-9a-f]{64}", self.code_sha256):
            raise UsageError("MUSTER_CODE_URL needs MUSTER_CODE_SHA256, 64 hex digits")
