"""Marks of sockets (SO_MARK): the node cache sets one per job, and traffic accounting counts by them."""

from __future__ import annotations

from typing import Final

BASE: Final = 0x1000
"""This bit is in no mask of kube-proxy (0x4000, 0x8000), Cilium (0x0f00), Calico (0xffff0000) or the AWS CNI (0x80)."""
MAX_MARKS: Final = 127
"""Marks are BASE + 1 to BASE + 127. Further jobs share BASE."""
MASK: Final = BASE | MAX_MARKS
"""The bits of our marks. The others may belong to a CNI or to kube-proxy."""
