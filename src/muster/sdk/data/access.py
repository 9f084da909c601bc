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
    """

    endpoint: str = ""
    region: str = ""
    credentials_dir: str = ""


def access_from(prefix: str) -> Access:
    """Read the settings from the environment: PREFIX_ENDPOINT, PREFIX_REGION and PREFIX_CREDENTIALS."""
    endpoint, region, folder = (os.environ.get(f"{prefix}_{each}", "") for each in _NAMES)
    return Access(endpoint, region, folder)


_NAMES = ("ENDPOINT", "REGION", "CREDENTIALS")
