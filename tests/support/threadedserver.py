"""An HTTP server with a thread for each connection, for handlers that answer as a test wants."""

from __future__ import annotations

import http.server
import socket
import sys


class ThreadedServer(http.server.ThreadingHTTPServer):
    """Queues many connections: one beyond the backlog of 5 would try again after a second, or after three.

    A client that goes away is not an error: its traceback would be in what a later test reads from stderr.
    """

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
