"""What a model of GPU must reach: floors.yaml, or a file of one's own in its place."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from muster.gputest.figures import FIGURES


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure's least value, on nodes with `gpus` GPUs where that is given; `source` says who found it."""

    figure: str
    at_least: float
    source: str
    gpus: int | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs by the names that the driver gives them."""

    names: tuple[str, ...]
    floors: tuple[Floor, ...]


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models."""

    version: int
    models: tuple[Model, ...]

    def of(self, name: str, gpus: int) -> tuple[Floor, ...]:
        """Those of a GPU on a node with so many; none for a model that is not known."""
        return tuple(
            floor
            for model in self.models
            if name in model.names
            for floor in model.floors
            if floor.gpus is None or floor.gpus == gpus
        )


def load(path: Path | None = None) -> Floors:
    """Raises ValueError that names the file and what is wrong with it."""
    try:
        text = path.read_bytes() if path else (files("muster.gputest") / "floors.yaml").read_bytes()
        floors = msgspec.yaml.decode(text, type=Floors)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    for model in floors.models:
        for floor in model.floors:
            if floor.figure not in FIGURES:
                raise ValueError(f"{path}: no figure {floor.figure!r}; there are {', '.join(FIGURES)}")
    return floors
