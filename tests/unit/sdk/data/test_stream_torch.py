"""The adapter for PyTorch, in a Python that has it: /usr/bin/python3, or MUSTER_TORCH_PREFIX/bin/python3."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from functools import cache
from pathlib import Path

import pytest

from muster.sdk.data import stream
from tests.support.shardstore import shard_of

ROOT = Path(__file__).parents[4]
BATCH = 24


@cache
def python_with_torch() -> str:
    """A Python that can import torch; "" if there is none."""
    python = os.environ.get("MUSTER_TORCH_PREFIX", "/usr").rstrip("/") + "/bin/python3"
    found = (
        Path(python).exists()
        and not subprocess.run(
            [python, "-c", "import torch.utils.data"], capture_output=True, timeout=60, check=False
        ).returncode
    )
    return python if found else ""


@pytest.fixture
def python() -> str:
    if not python_with_torch():
        pytest.skip("no PyTorch: install it for /usr/bin/python3, or set MUSTER_TORCH_PREFIX")
    return python_with_torch()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number in range(12):
        (folder / f"shard-{number:03d}.tar").write_bytes(shard_of(number, 10 + number % 3))
    stream(str(folder), seed=0, global_batch=1).close()
    return folder


def straight(data: Path, batches: int) -> list[str]:
    """Keys of the first batches, from the reader itself."""
    with stream(str(data), seed=7, global_batch=BATCH) as found:
        return [sample.key for _ in range(batches) for sample in next(found)]


def run(python: str, folder: Path, program: str, **environment: str) -> list[object]:
    """Run a program, and return the JSON values that it prints."""
    path = folder / "program.py"  # spawned workers import it
    path.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [python, str(path)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_has_the_same_samples_for_any_number_of_workers_and_a_cursor_of_what_was_received(
    python: str, data: Path, tmp_path: Path, workers: int
) -> None:
    """meta-pytorch/data 1317 and streaming 437: prefetched batches do not count, and nothing restarts at sample 0."""
    program = """
        import json
        from muster.sdk.data.torch import StreamLoader

        def key(sample):
            return sample.key

        if __name__ == "__main__":
            options = dict(url=DATA, seed=7, global_batch=24, decode=key)
            loader = StreamLoader(num_workers=WORKERS, prefetch_factor=4, collate=list, **options)
            first = [key for _, batch in zip(range(3), loader) for key in batch]
            cursor = loader.cursor()
            second = next(loader)  # the same workers go on
            loader.close()
            third = [next(StreamLoader(cursor=cursor, **options))]
            for value in (first, second, third[0], cursor):
                print(json.dumps(value))
    """
    program = program.replace("DATA", repr(str(data))).replace("WORKERS", str(workers))
    first, second, third, cursor = run(python, tmp_path, program)
    expected = straight(data, 4)
    assert first == expected[: 3 * BATCH]
    assert second == third == expected[3 * BATCH :]
    assert json.loads(str(cursor))["position"] == 3 * BATCH


@pytest.mark.slow
def test_ranks_of_torch_distributed_share_batches_with_a_plain_data_loader(
    python: str, data: Path, tmp_path: Path
) -> None:
    """Also with persistent workers; a second iteration is an error instead of a restart at sample 0."""
    program = """
        import json, os, torch.distributed, torch.multiprocessing
        from torch.utils.data import DataLoader
        from muster.sdk.data.torch import StreamDataset

        def rank(number, results):
            torch.distributed.init_process_group("gloo", init_method=RENDEZVOUS, rank=number, world_size=2)
            dataset = StreamDataset(url=DATA, seed=7, global_batch=24, epochs=1)
            loader = DataLoader(
                dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
            )
            parts = list(loader)
            results.put((number, [[sample.key for sample in part.samples] for part in parts], parts[-1].cursor))
            try:
                next(iter(loader))
            except RuntimeError as error:
                results.put((number, str(error), ""))
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            context = torch.multiprocessing.get_context("fork")
            results = context.Queue()
            ranks = [context.Process(target=rank, args=(number, results)) for number in range(2)]
            for each in ranks:
                each.start()
            for value in [results.get(timeout=80) for _ in range(4)]:
                print(json.dumps(value))
            for each in ranks:
                each.join()
    """
    rendezvous = f"file://{tmp_path}/rendezvous"
    program = program.replace("DATA", repr(str(data))).replace("RENDEZVOUS", repr(rendezvous))
    values = run(python, tmp_path, program, GLOO_SOCKET_IFNAME="lo")
    parts = {number: found for number, found, cursor in values if cursor}  # type: ignore[misc]
    errors = [found for _, found, cursor in values if not cursor]  # type: ignore[misc]
    batches = [
        [key for rank in range(2) for part in parts[rank][2 * batch : 2 * batch + 2] for key in part]
        for batch in range(5)
    ]
    assert [key for batch in batches for key in batch] == straight(data, 5)
    assert len(errors) == 2
    assert all("use StreamLoader" in error for error in errors)
