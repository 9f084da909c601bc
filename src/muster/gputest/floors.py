"""The least figures for each GPU model: floors.yaml, or the user's own file instead."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from muster.gputest.figures import FIGURES


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure's least value, only on nodes with `gpus` GPUs if that is set; `source` names its origin."""

    figure: str
    at_least: float
    source: str
    gpus: int | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPU models, by the driver's names."""

    names: tuple[str, ...]
    floors: tuple[Floor, ...]


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The floors of all models."""

    version: int
    models: tuple[Model, ...]

    def of(self, name: str, gpus: int) -> tuple[Floor, ...]:
        """Return the floors of a GPU on a node with this many; empty for an unknown model."""
        return tuple(
            floor
            for model in self.models
            if name in model.names
            for floor in model.floors
            if floor.gpus is None or floor.gpus == gpus
        )


def load(path: Path | None = None) -> Floors:
    """Read the floors. Raises ValueError with the file and the problem."""
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
