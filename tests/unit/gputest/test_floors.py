"""Floors are data with a source; a file that says nonsense is refused with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.gputest.figures import FIGURES
from muster.gputest.floors import load

GOOD = "version: 1\nmodels:\n  - names: [M]\n    floors:\n      - {figure: FIGURE, at_least: 5, source: s}\n"


def test_floors_that_come_along_know_the_models_in_use() -> None:
    floors = load()
    for name, copy, total in (("NVIDIA H100 80GB HBM3", 52, 460), ("NVIDIA H200", 55, 480)):
        least = {floor.figure: floor.at_least for floor in floors.of(name, 8)}
        assert (least["host_to_device_gb_per_s"], least["all_reduce_bus_gb_per_s"]) == (copy, total)
    assert all(floor.source for model in floors.models for floor in model.floors)


def test_sums_over_fewer_gpus_have_no_floor() -> None:
    assert "all_reduce_bus_gb_per_s" not in {floor.figure for floor in load().of("NVIDIA H100 80GB HBM3", 4)}


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA Unheard-of", ""])
def test_a_model_that_is_not_known_has_no_floor(name: str) -> None:
    assert load().of(name, 8) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("FIGURE", "warp_speed"), "warp_speed"),
        (GOOD.replace("FIGURE", "temperature_max_c").replace("5", "five"), "floors[0].at_least"),
        (GOOD.replace("source: s", "sauce: s"), "sauce"),
        ("models: [", "expected"),
    ],
)
def test_a_file_with_an_error_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "floors.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"floors\.yaml") as raised:
        load(path)
    assert said in str(raised.value)


def test_a_file_of_ones_own_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "floors.yaml"
    path.write_text(GOOD.replace("FIGURE", next(iter(FIGURES))))
    assert load(path).of("NVIDIA H200", 8) == ()
    assert load(path).of("M", 1)[0].at_least == 5
