"""IP addresses in texts."""

from __future__ import annotations

import ipaddress


def is_address(text: str) -> bool:
    """Return whether the text is an IP address, and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
