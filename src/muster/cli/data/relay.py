"""Passes requests to the node cache of this node: `python -m muster.cli.data.relay SOCKET`.

`muster data` runs it in the pod of a node cache, by pods/exec. Each line on stdin is a request, and each line on stdout
is its answer, both in JSON. So credentials are never arguments of a process, and the cache does not listen for requests
from the network.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import BinaryIO

from muster.sdk.data.wire import ProtocolError, close_all, receive, send, short_address

ANSWER_S = 900.0
"""Longest time for one answer. The user's command has a shorter deadline of its own."""


def main(arguments: list[str]) -> int:
    """Answer the requests on stdin until its end; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m muster.cli.data.relay SOCKET", file=sys.stderr)
        return 2
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            with short_address(arguments[0]) as address:
                connection.connect(address)
            return relay(connection, sys.stdin.buffer, sys.stdout.buffer)
    except OSError as error:
        print(f"the node cache does not answer at {arguments[0]}: {error.strerror or error}", file=sys.stderr)
        return 1


def relay(connection: socket.socket, requests: BinaryIO, answers: BinaryIO) -> int:
    """Send each request, and write its answer. Returns the exit status. Raises OSError."""
    for line in requests:
        try:
            send(connection, json.loads(line))
            answer, descriptors = receive(connection)
        except (ProtocolError, EOFError, ValueError) as error:
            print(f"the node cache failed: {error}", file=sys.stderr)
            return 1
        close_all(descriptors)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
