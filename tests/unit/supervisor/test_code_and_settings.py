from __future__ import annotations

import ast
import base64
import hashlib
import http.server
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.kube.connection.pki import CertificateAuthority
from muster.trainingjobs.supervisor.attempts.codearchive import install_code
from muster.trainingjobs.supervisor.basics import SELF, UsageError
from muster.trainingjobs.supervisor.settings import Settings
from tests.support.supervisor_stub import INSTALL

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "muster"
SUPERVISOR = sorted((PACKAGE / "trainingjobs" / "supervisor").rglob("*.py"))
IN_USERS_IMAGES = [*SUPERVISOR, PACKAGE / "__init__.py", *sorted((PACKAGE / "sdk").rglob("*.py"))]
OPTIONAL = {"obstore", "torch"}  # of the SDK: imported on first use
OLDEST = (3, 8)


@pytest.fixture(scope="module")
def ca() -> str:
    return base64.b64encode(CertificateAuthority.create().certificate).decode()


def environment(ca: str, folder: Path, **changes: str | None) -> dict[str, str]:
    env = dict.fromkeys(Settings.REQUIRED, "x")
    env.update(MUSTER_URL="https://localhost", MUSTER_CA_DATA=ca, POD_IP="10.0.0.1", MUSTER_WORKDIR=str(folder))
    env.update({name: value for name, value in changes.items() if value is not None})
    return {name: value for name, value in env.items() if name not in changes or changes[name] is not None}


def archive(path: Path, *members: tuple[str, str] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o6755
                tar.addfile(info, io.BytesIO(member[1].encode()))
    return path


@pytest.mark.parametrize("path", IN_USERS_IMAGES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_code_in_users_images_is_python_3_8_with_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert path in SUPERVISOR
            imported_from = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            assert {imported_from.with_suffix(".py"), imported_from / "__init__.py"} & set(SUPERVISOR)
    allowed = {name for name in sys.stdlib_module_names if name not in {"tomllib", "zoneinfo", "graphlib"}}
    assert imported - allowed <= ({"muster", *OPTIONAL} if path not in SUPERVISOR else set())


def test_every_missing_variable_is_named(ca: str, tmp_path: Path) -> None:
    env = environment(ca, tmp_path, POD_UID=None, MUSTER_URL="")
    result = subprocess.run([*SELF, "run"], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "MUSTER_URL, POD_UID" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"MUSTER_URL": "http://localhost"}, "MUSTER_URL must be https"),
        ({"MUSTER_CA_DATA": "!"}, "MUSTER_CA_DATA"),
        ({"MUSTER_CA_DATA": base64.b64encode(b"no certificate").decode()}, "MUSTER_CA_DATA"),
        ({"POD_IP": "pod"}, "POD_IP"),
        ({"MUSTER_CODE_URL": "https://x/y"}, "MUSTER_CODE_SHA256"),
    ],
)
def test_a_wrong_variable_is_named(ca: str, tmp_path: Path, changes: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Settings(environment(ca, tmp_path, **changes))


def test_code_is_unpacked_without_special_modes_and_only_once(ca: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "code.tar.gz", ("train.py", "1"), ("package/model.py", "2"))
    settings = Settings(environment(ca, tmp_path / "work", MUSTER_CODE_ARCHIVE=str(path)))
    install_code(settings)
    assert (tmp_path / "work" / "package" / "model.py").read_text() == "2"
    assert stat.S_IMODE((tmp_path / "work" / "train.py").stat().st_mode) == 0o755
    (tmp_path / "work" / "train.py").write_text("changed by the job")
    install_code(settings)
    assert (tmp_path / "work" / "train.py").read_text() == "changed by the job"


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        ("../escaped", "x"),
        ("a/../../escaped", "x"),
        ("/tmp/muster-escaped", "x"),
        link("out", ".."),
        link("hard", "/etc/passwd", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name if isinstance(member, tarfile.TarInfo) else member[0],
)
def test_an_archive_that_reaches_outside_writes_nothing(
    ca: str, tmp_path: Path, member: tuple[str, str] | tarfile.TarInfo
) -> None:
    path = archive(tmp_path / "code.tar.gz", ("fine.py", "1"), member)
    settings = Settings(environment(ca, tmp_path / "work", MUSTER_CODE_ARCHIVE=str(path)))
    with pytest.raises(UsageError, match="archive"):
        install_code(settings)
    assert os.listdir(tmp_path / "work") == []
    assert sorted(os.listdir(tmp_path)) == ["code.tar.gz", "work"]


def test_a_link_that_was_there_before_is_not_followed_outside(ca: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "out").symlink_to(tmp_path)
    path = archive(tmp_path / "code.tar.gz", ("out/escaped", "x"))
    settings = Settings(environment(ca, tmp_path / "work", MUSTER_CODE_ARCHIVE=str(path)))
    with pytest.raises(UsageError, match="outside"):
        install_code(settings)
    assert not (tmp_path / "escaped").exists()


def test_a_broken_archive_is_named(ca: str, tmp_path: Path) -> None:
    (tmp_path / "code.tar.gz").write_bytes(b"not a tar")
    settings = Settings(environment(ca, tmp_path / "work", MUSTER_CODE_ARCHIVE=str(tmp_path / "code.tar.gz")))
    with pytest.raises(UsageError, match=r"code\.tar\.gz"):
        install_code(settings)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_code_from_a_url_must_have_the_digest_the_job_names(ca: str, tmp_path: Path, web: str) -> None:
    path = archive(tmp_path / "code.tar.gz", ("train.py", "1"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    env = environment(ca, tmp_path / "work", MUSTER_CODE_URL=f"{web}/code.tar.gz", MUSTER_CODE_SHA256=digest)
    install_code(Settings(env))
    assert (tmp_path / "work" / "train.py").read_text() == "1"
    env.update(MUSTER_CODE_SHA256="0" * 64, MUSTER_WORKDIR=str(tmp_path / "other"))
    with pytest.raises(UsageError, match="SHA-256"):
        install_code(Settings(env))
    assert os.listdir(tmp_path / "other") == []


def install(folder: Path) -> Path:
    subprocess.run([*INSTALL, str(folder)], check=True)
    return folder / "supervisor.py"


@pytest.mark.slow
def test_install_makes_a_supervisor_and_an_sdk_that_work_alone(tmp_path: Path) -> None:
    installed = install(tmp_path)
    assert os.access(installed, os.X_OK)
    usage = subprocess.run(
        [str(installed)], cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, check=False
    )
    assert (usage.returncode, usage.stderr[:14]) == (2, b"muster: usage:")
    program = "import muster; print(muster.__file__, muster.__version__, muster.rank())"
    env = {"PYTHONPATH": str(tmp_path / "sdk"), "RANK": "3", "PATH": os.environ["PATH"]}
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [str(tmp_path / "sdk" / "muster" / "__init__.py"), "0.1.0", "3"]


@pytest.mark.slow
def test_installed_archive_is_reproducible_and_uncompressed(tmp_path: Path) -> None:
    one, two = install(tmp_path / "one"), install(tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        names = set(archive.namelist()) - {"__main__.py"}
    folder = PACKAGE / "trainingjobs" / "supervisor"
    modules = {f"muster_supervisor/{path.relative_to(folder)}" for path in SUPERVISOR if path.name != "__main__.py"}
    assert names == modules | {f"{name}c" for name in modules}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "head"),
    [
        pytest.param(".py", b"raise SystemExit(9)\n", id="same Python: bytecode, not sources"),
        pytest.param(".pyc", b"\0\0\r\n", id="another Python: sources, not bytecode"),
    ],
)
def test_installed_archive_starts_from_what_fits_its_python(tmp_path: Path, suffix: str, head: bytes) -> None:
    spoiled = tmp_path / "spoiled.py"
    with zipfile.ZipFile(install(tmp_path)) as installed, zipfile.ZipFile(spoiled, "w") as target:
        for name in installed.namelist():
            data = installed.read(name)
            spoil = name.endswith(suffix) and name != "__main__.py"
            target.writestr(name, head + data[len(head) :] if spoil else data)
    usage = subprocess.run([sys.executable, "-I", "-S", str(spoiled)], capture_output=True, check=False)
    assert (usage.returncode, usage.stderr[:14]) == (2, b"muster: usage:")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ranks.rank", "remoteshell.rsh"])
def test_processes_per_rank_and_node_import_little(tmp_path: Path, module: str) -> None:
    command = module.rpartition(".")[2]
    installed = install(tmp_path)
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-v", str(installed), command], capture_output=True, text=True, check=False
    )
    assert "usage: supervisor.py " + command in result.stderr
    loaded = set(re.findall(r"^import '?([\w.]+)'? #", result.stderr, re.MULTILINE))
    assert "muster_supervisor." + module in loaded
    assert not loaded & {"ssl", "http.client", "urllib.request", "tarfile", "muster_supervisor.loop"}
