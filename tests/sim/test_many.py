"""Many seeds from the command line: what was run is kept, and a run that was cut short continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def fuzz(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fuzz", *arguments, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    summary: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])["fuzz"]
    return summary


def test_resumed_run_ends_with_the_same_result(tmp_path: Path) -> None:
    kept = tmp_path / "seeds.jsonl"
    whole = fuzz("--first", "4", "--seeds", "3")
    assert (whole["seeds"], whole["findings"]) == (3, [])
    assert whole["events"] > 1000
    fuzz("--first", "4", "--seeds", "2", "--jobs", "2", "--kept", str(kept))
    first, second = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(first + second[: len(second) // 2])
    resumed = fuzz("--first", "4", "--seeds", "3", "--jobs", "2", "--kept", str(kept))
    assert [resumed[name] for name in ("seeds", "events", "digest")] == [
        whole[name] for name in ("seeds", "events", "digest")
    ]
    assert sorted(json.loads(line)["seed"] for line in kept.read_text().splitlines()) == [4, 5, 6]
