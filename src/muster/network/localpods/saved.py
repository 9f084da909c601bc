"""The last known pods of this node, in a file: a restarted agent works before it reaches the API server."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from muster.kube.durablefile import write_durably
from muster.network.localpods.pod import LocalPod

log = logging.getLogger(__name__)


class _Saved(msgspec.Struct, frozen=True):
    pods: tuple[LocalPod, ...] = ()


def load_pods(path: Path) -> dict[str, LocalPod]:
    """Return the saved pods by UID. Without a file, or with one that is not readable, there are none."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the saved pods in %s are not readable (%s); the API server's list will replace them", path, error)
        return {}
    return {each.uid: each for each in saved.pods}


def save_pods(path: Path, pods: Iterable[LocalPod]) -> None:
    """Write the pods, atomically. Raises OSError."""
    write_durably(path, msgspec.json.encode(_Saved(tuple(pods))))
