"""The rank of this process in the job, from the environment that the supervisor or an MPI launcher sets."""

import os


def _number(default: int, *names: str) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value:
            try:
                return int(value)
            except ValueError:
                raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    return default


def rank() -> int:
    """The rank of this process in the job, 0 to world_size() - 1; 0 outside a job."""
    return _number(0, "RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def world_size() -> int:
    """The number of processes in the job; 1 outside a job."""
    return _number(1, "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def local_rank() -> int:
    """The rank of this process on its node; use it to choose the GPU."""
    return _number(0, "LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")


def local_world_size() -> int:
    """The number of processes on this node."""
    return _number(1, "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def node_rank() -> int:
    """The rank of this node in the job."""
    return _number(0, "NODE_RANK", "GROUP_RANK", "MUSTER_SLOT")


def attempt() -> int:
    """The number of the job's attempt, from 1; 0 outside Muster."""
    return _number(0, "MUSTER_ATTEMPT")
