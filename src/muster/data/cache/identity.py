"""How the cache learns which job a reader belongs to. The peers' registry of gangs implements it."""

from __future__ import annotations

from typing import Any, Protocol


class Member(Protocol):
    """A reader with a valid ticket."""

    @property
    def uid(self) -> str:
        """UID of its job."""

    @property
    def name(self) -> str:
        """NAMESPACE/JOB."""

    @property
    def gang(self) -> Any:
        """The gang, for `PeerSource.fetch`; None if peers do not serve this reader."""

    def end(self) -> None:
        """Record that the reader is gone."""


class Members(Protocol):
    """Verifies tickets."""

    def join(self, file: Any) -> Member | None:
        """Register a reader by the content of its ticket file; None if the ticket is refused."""
