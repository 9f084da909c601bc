from __future__ import annotations

import pytest

import muster

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MUSTER_ATTEMPT")


def place() -> tuple[int, ...]:
    return (
        muster.rank(), muster.world_size(), muster.local_rank(), muster.local_world_size(), muster.node_rank(),
        muster.attempt(),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NUMBERS, "PMI_RANK", "PMI_SIZE", "GROUP_RANK", "MUSTER_SLOT", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_outside_a_job_a_process_is_alone() -> None:
    assert place() == (0, 1, 0, 1, 0, 0)


@pytest.mark.parametrize(
    "env",
    [
        dict(zip(NUMBERS, "527412", strict=True)),
        {"PMI_RANK": "5", "PMI_SIZE": "2", "MPI_LOCALRANKID": "7", "MPI_LOCALNRANKS": "4", "MUSTER_SLOT": "1"},
        {
            "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "7",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "GROUP_RANK": "1",
        },
    ],
    ids=["muster", "hydra", "openmpi"],
)  # fmt: skip
def test_numbers_come_from_the_supervisor_or_the_launcher(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    for name, value in {"MUSTER_ATTEMPT": "2", **env}.items():
        monkeypatch.setenv(name, value)
    assert place() == (5, 2, 7, 4, 1, 2)


def test_value_that_is_not_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK must be a whole number, not 'first'"):
        muster.rank()
