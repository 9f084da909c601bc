"""Files that a supervisor shares with the ranks of an attempt: private, named by variables, and gone afterwards."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from muster.trainingjobs.supervisor.ranks import shared
from muster.trainingjobs.supervisor.ranks.shared import remove_shared, share
from muster.trainingjobs.supervisor.state.attempt import AttemptSpec
from tests.unit.supervisor.test_failed_orphan import RUN

TICKET = {"ticket": "signed", "key": "00ff", "peers": [{"slot": 1, "address": "10.0.0.2:7000"}]}


def attempt(number: int = 3, **run: Any) -> AttemptSpec:
    return AttemptSpec({"attempt": number, "run": {**RUN, **run}})


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_a_ticket_is_a_file_that_only_this_user_reads(tmp_path: Path) -> None:
    names = share(attempt(cache=TICKET), str(tmp_path))
    assert json.loads(Path(names["MUSTER_CACHE_TICKET"]).read_text()) == TICKET
    assert mode(names["MUSTER_CACHE_TICKET"]) == 0o600
    assert mode(names["MUSTER_RESTORE_DIR"]) == 0o700
    (Path(names["MUSTER_RESTORE_DIR"]) / "attempt-3").mkdir()
    remove_shared(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert "MUSTER_CACHE_TICKET" not in share(attempt(4), str(tmp_path)), "the next attempt has a ticket of its own"


def test_results_go_to_the_supervisors_folder_if_the_volume_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "volume").write_text("no folder can be made here")
    monkeypatch.setattr(shared, "ARCHIVE", str(tmp_path / "volume" / "bin" / "supervisor.py"))
    own = tmp_path / "own"
    own.mkdir()
    assert share(attempt(), str(own)) == {"MUSTER_RESTORE_DIR": str(own / "restore")}
    remove_shared(str(own))
    assert list(own.iterdir()) == []


def test_ranks_learn_the_digest_of_the_confirmed_manifest() -> None:
    checkpoint = {"path": "s3://b/step-8", "step": 8, "manifest": "ab" * 32}
    env = attempt(checkpoint=checkpoint).env
    assert (env["MUSTER_CHECKPOINT_STEP"], env["MUSTER_CHECKPOINT_MANIFEST"]) == ("8", "ab" * 32)
    assert attempt().env["MUSTER_CHECKPOINT_MANIFEST"] == ""
