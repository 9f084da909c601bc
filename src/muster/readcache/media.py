"""The media types in which the cache keeps objects."""

from __future__ import annotations

import enum


class MediaType(enum.Enum):
    """A media type; its value is the text in `Accept` and `Content-Type`."""

    JSON = "application/json"
    PROTOBUF = "application/vnd.kubernetes.protobuf"

    @property
    def watch(self) -> str:
        """The content type of a watch, as kube-apiserver's serveWatchHandler writes it."""
        return self.value if self is MediaType.JSON else f"{self.value};stream=watch"
