"""What the cache needs from a media type: metadata out of an object's bytes, and kube-apiserver's answers around them.

`data` is the bytes of one object as they lie in a list's `items`: without type meta for built-in kinds, with it for
custom resources. They are the bytes that the server sent, never encoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from muster.kube.protobuf import WireError

INITIAL_END: Final = "k8s.io/initial-events-end"
BOOKMARK: Final = "BOOKMARK"
ERROR: Final = "ERROR"

# as client-go: the largest frame that its stream decoders read
FRAME_LIMIT_BYTES: Final = 16 * 1024 * 1024


class Head(NamedTuple):
    """Metadata of an object.

    Attributes:
        version: resourceVersion.
        fields: values of the kind's selectable fields besides metadata.name and metadata.namespace, by the label that
            `SelectableFields.internal` returns. Empty values are left out.
    """

    name: str
    namespace: str
    uid: str
    version: int
    labels: dict[str, str]
    fields: dict[str, str]


class ListMeta(NamedTuple):
    """Metadata of a list. `remaining` is None if the server does not count what follows."""

    version: int
    continue_token: str = ""
    remaining: int | None = None


class Frame(NamedTuple):
    """An event of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
        data: the object; of an ERROR the metav1.Status as JSON in every media type; empty for a BOOKMARK.
        version: resourceVersion of a BOOKMARK, else 0.
        initial_end: the BOOKMARK ends the initial events of a WatchList.
    """

    type: str
    data: bytes
    version: int = 0
    initial_end: bool = False


class FrameDecoder(Protocol):
    """Cuts the bytes of a watch into frames."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that are complete now.

        Raises:
            WireError: the bytes are not frames of a watch, or a frame is larger than 16 MiB (FRAME_LIMIT_BYTES). The
                decoder is of no use afterwards.
        """
        ...


class WireFormat(Protocol):
    """One media type of one kind. Methods that read bytes raise WireError if they cannot."""

    media_type: str
    watch_media_type: str

    def head(self, data: bytes) -> Head:
        """Reads an object's metadata."""
        ...

    def at_version(self, data: bytes, version: int) -> bytes:
        """Returns the object with another resourceVersion."""
        ...

    def single(self, data: bytes) -> bytes:
        """Returns the body of a get."""
        ...

    def frame(self, type_: str, data: bytes) -> bytes:
        """Returns a whole event of a watch."""
        ...

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """Returns a whole BOOKMARK event."""
        ...

    def error_frame(self, status: bytes) -> bytes:
        """Returns a whole ERROR event. `status` is the JSON of a metav1.Status."""
        ...

    def status(self, status: bytes) -> bytes:
        """Returns the body of an error answer. `status` is the JSON of a metav1.Status."""
        ...

    def listing(self, datas: Iterable[bytes], meta: ListMeta) -> Iterator[bytes]:
        """Yields the pieces of a list's body."""
        ...

    def split_list(self, body: bytes) -> tuple[ListMeta, list[bytes]]:
        """Returns a list's metadata and its objects."""
        ...

    def decoder(self) -> FrameDecoder:
        """Returns a decoder for one watch."""
        ...


def parse_version(text: str) -> int:
    """Returns a resourceVersion as a number. Raises WireError if it is not one."""
    if not text.isascii() or not text.isdecimal():
        raise WireError(f"resourceVersion {text[:40]!r} is not a number")
    return int(text)
