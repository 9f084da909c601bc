"""Issue 11.29: the wheel holds the CLI, the embedded cluster, the SDK and the chart; no checkout is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from muster.chart.files import chart
from muster.cli.reference import sdk
from tests.support.musterprogram import Muster, muster_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
HELLO = "import muster; print('hello from', muster.rank())\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel, and the packages it needs from this one, which no index is asked for."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    made = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", made], check=True, capture_output=True, timeout=100)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    install = [made / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=100, env=kept)
    (packages,) = made.glob("lib/python3*/site-packages")
    # A .pth file in a folder that another one adds is not read, so this checkout's editable install stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as made:
        yield made


def test_the_sdk_page_has_every_public_name() -> None:
    assert sdk.main(["--check"]) == 0
    page = sdk.PAGE.read_text()
    names = [name for names in sdk.parts().values() for name in names]
    assert [name for name in names if f"### {name}\n" not in page] == []
    assert "## More" not in page, "give the new name a heading in _PARTS"


def test_a_job_runs_from_the_wheel(environment: Path, muster: Muster) -> None:
    program = environment / "bin/muster"
    (muster.work / "hello.py").write_text(HELLO)
    muster.ok("up", "--nodes", "1", program=program)
    try:
        arguments = ("run", "hello.py", "--nodes", "1", "--ranks-per-node", "1", "--launcher", "none", "--wait")
        muster.ok(*arguments, program=program, env={"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"})
        said = muster.ok("logs", "hello", program=program)
        assert "hello from 0" in said
        where = ["import muster.embedded.daemon as daemon; print(daemon.__file__)"]
        daemon = subprocess.run([environment / "bin/python", "-c", *where], capture_output=True, text=True, check=True)
        assert daemon.stdout.startswith(str(environment))
    finally:
        muster.ok("down", program=program)


def test_the_chart_is_in_the_wheel(environment: Path, muster: Muster) -> None:
    program = environment / "bin/muster"
    assert muster.ok("chart", "mine", program=program) == "mine\n"
    made = muster.work / "mine"
    files = {path.relative_to(chart()): path.read_bytes() for path in chart().rglob("*") if path.is_file()}
    assert {path.relative_to(made): path.read_bytes() for path in made.rglob("*") if path.is_file()} == files
    assert yaml.safe_load((made / "Chart.yaml").read_text())["name"] == "muster"
    again = muster.run("chart", "mine", program=program)
    assert again.returncode == 5
    assert "mine is not empty" in again.stderr
