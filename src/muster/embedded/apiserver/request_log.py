"""Records requests, one JSON line each, to show which requests components send."""

from __future__ import annotations

from pathlib import Path

from muster.embedded.apiserver.request import Request
from muster.embedded.objects import encode


class Recorder:
    """Appends to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def record(self, request: Request, path: str, code: int) -> None:
        """Write one line; bodies and tokens are left out."""
        line = {
            "method": request.method,
            "path": path,
            "userAgent": request.headers.get("user-agent", ""),
            "user": request.user.name,
            "status": code,
        }
        if request.method == "PATCH":
            line["contentType"] = request.headers.get("content-type", "")
        self._file.write(encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
