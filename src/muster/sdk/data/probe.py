"""Checks that a store is safe for checkpoints: that it refuses to overwrite an object that exists.

    python3 -m muster.sdk.data.probe s3://bucket/ckpt --prefix MUSTER_CHECKPOINT --json
    python3 -m muster.sdk.data.probe s3://bucket/data --read --prefix MUSTER_DATA --json

With --read it writes nothing, and checks instead that the URL holds at least one object.

Exit codes: 0 the store passed; 1 it did not, or it cannot be used; 2 wrong arguments; 3 no answer in time, try again.
With --json the last line is {"ok", "reason", "message"}. `reason` is Safe, Readable, or the `reason` of the error, such
as NoCreateOnly, NotFound, Forbidden, WrongBucket or Unavailable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import uuid
from typing import Sequence

from muster.sdk.data.access import access_from
from muster.sdk.data.errors import AlreadyExists, NoCreateOnly, NotFound, StoreError, Unavailable
from muster.sdk.data.store import Store
from muster.sdk.data.stores import open_store

SAFE = "Safe"
READABLE = "Readable"
DEADLINE_S = 60.0
_CALLS = 5
_FIRST, _SECOND = b"first", b"second"


def check(store: Store) -> None:
    """Create an object, check that a second create-only write is refused, read it back, and delete it.

    Raises:
        NoCreateOnly: the store overwrote the object, or returned other bytes.
        StoreError: the store cannot be used; the message says what to change. Nothing is left behind, unless the
            store does not permit the deletion.
    """
    key = f".muster-probe-{uuid.uuid4().hex}"
    try:
        store.put(key, _FIRST, create_only=True)
        refused = False
        try:
            store.put(key, _SECOND, create_only=True)
        except AlreadyExists:
            refused = True
        found = _read(store, key)
    except StoreError:
        with contextlib.suppress(StoreError):
            store.delete(key)
        raise
    store.delete(key)
    if not refused or found != _FIRST:
        raise NoCreateOnly(
            f"{store.url}: the store overwrites an object although the write is create-only, so a stale attempt could "
            "replace a checkpoint. Use a store that honours If-None-Match, or a newer version of this one",
            store.url,
        )


def check_readable(store: Store) -> None:
    """List the first object.

    Raises:
        NotFound: there is none.
        StoreError: the store cannot be used; the message says what to change.
    """
    if next(iter(store.list()), None) is None:
        raise NotFound(f"{store.url} holds no objects: check the bucket and the prefix of the URL", store.url)


def _read(store: Store, key: str) -> bytes:
    """The object's bytes; none if the store already lost the object that it accepted."""
    try:
        return store.read(key)
    except NotFound:
        return b""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and print its result. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m muster.sdk.data.probe", description="Check a store.")
    parser.add_argument("url", help="of the store, such as s3://bucket/ckpt")
    parser.add_argument(
        "--prefix",
        default="MUSTER_CHECKPOINT",
        help="of the variables PREFIX_ENDPOINT, PREFIX_REGION and PREFIX_CREDENTIALS (default: %(default)s)",
    )
    parser.add_argument("--read", action="store_true", help="check only that the URL holds objects; write nothing")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    code, reason, message = _result(options.url, options.prefix, options.deadline, options.read)
    if options.json:
        print(json.dumps({"ok": code == 0, "reason": reason, "message": message}))
    else:
        print(message, file=sys.stderr if code else sys.stdout)
    return code


def _result(url: str, prefix: str, deadline_s: float, only_read: bool) -> tuple[int, str, str]:
    try:
        store = open_store(url, access_from(prefix), deadline_s if only_read else deadline_s / _CALLS)
        try:
            (check_readable if only_read else check)(store)
        finally:
            store.close()
    except Unavailable as error:
        return 3, error.reason, str(error)
    except StoreError as error:
        return 1, error.reason, str(error)
    if only_read:
        return 0, READABLE, f"{store.url}: the store can be read"
    return 0, SAFE, f"{store.url}: the store is safe for checkpoints"


if __name__ == "__main__":
    sys.exit(main())
