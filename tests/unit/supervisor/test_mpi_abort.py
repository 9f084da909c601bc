"""Issue 11.3: the tail of a rank that aborts ends with its own words, not with the MPI library's teardown."""

from __future__ import annotations

from muster.trainingjobs.supervisor.state.mpiabort import find_abort

OWN = ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: no such batch"]
CALLED = "Abort(256) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 256) - process 1"
TEARDOWN = [
    "[cli-1]: PMIU_write error; fd=5 buf=:cmd=barrier_in",
    "system msg for write_line failure : Broken pipe",
    "Abort(807528207): Fatal error in internal_Finalize: Other MPI error, error stack:",
    "Abort(807528207) on node 1 (rank 1 in comm 0): Fatal error in internal_Finalize: Other MPI error, error stack:",
    "pmi1_barrier(120)...............: PMI_Barrier returned -1",
]
ERROR = [
    "Abort(671694085) on node 0 (rank 0 in comm 0): Fatal error in internal_Send: Invalid rank, error stack:",
    "internal_Send(118): Invalid rank has value 7 but must be nonnegative and less than 2",
]


def test_lines_after_a_call_of_mpi_abort_are_not_the_rank_s() -> None:
    abort = find_abort([*OWN, CALLED, *TEARDOWN])
    assert abort is not None
    assert (abort.code, abort.before, abort.said) == (1, OWN, OWN)  # 256 is exit code 0: not a success


def test_call_of_mpi_abort_without_other_output_is_shown_itself() -> None:
    abort = find_abort([CALLED, *TEARDOWN])
    assert abort is not None
    assert abort.said == [CALLED]


def test_the_stack_of_an_error_that_the_library_aborts_for_stays() -> None:
    abort = find_abort([*OWN, *ERROR])
    assert abort is not None
    assert (abort.code, abort.before, abort.said) == (671694085 & 255, OWN, [*OWN, *ERROR])


def test_lines_without_an_abort_are_not_one() -> None:
    assert find_abort(OWN) is None
