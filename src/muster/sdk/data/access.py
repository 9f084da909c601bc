"""How to reach an object store: endpoint, region, and the folder of its credentials."""

from __future__ import annotations

import os
from typing import NamedTuple


class Access(NamedTuple):
    """Settings of an object store besides its URL.

    Attributes:
        endpoint: URL of the service; "" for the cloud's own.
        region: region of the bucket; "" for the default.
        credentials_dir: folder of a mounted Secret; "" for the usual chain (environment, workload identity).
        secret: name of that Secret, for messages; "" if it is not known.
    """

    endpoint: str = ""
    region: str = ""
    credentials_dir: str = ""
    secret: str = ""

    @property
    def source(self) -> str:
        """Where credentials come from, for messages: the Secret or its folder; "" for the usual chain."""
        return f"Secret {self.secret}" if self.secret and self.credentials_dir else self.credentials_dir


def access_from(prefix: str) -> Access:
    """Read the settings from the environment: PREFIX_ENDPOINT, _REGION, _CREDENTIALS and _SECRET."""
    return Access(*(os.environ.get(f"{prefix}_{each}", "") for each in _NAMES))


_NAMES = ("ENDPOINT", "REGION", "CREDENTIALS", "SECRET")
