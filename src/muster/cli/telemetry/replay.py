"""`muster telemetry replay`: how long Prometheus needs to start again, how much memory that takes, and what helps."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import finite, not_empty
from muster.cli.output import note, output_option, paint, print_data, print_table, say
from muster.cli.telemetry.calibrate import SERIES_LEAST, SERIES_MOST, Work, calibrate_into
from muster.cli.telemetry.logfolder import in_percent, read_log
from muster.cli.telemetry.running import cores_here, run, stages
from muster.cli.telemetry.server_options import ServerOptions, server_options

if TYPE_CHECKING:
    from muster.telemetry.replay.advice import Advice, Settings
    from muster.telemetry.replay.calibration import Calibration
    from muster.telemetry.replay.model import Prediction, ReplaySize, Trust
    from muster.telemetry.replay.serversize import ServerState
    from muster.telemetry.replay.wal.folder import Folder

_STARTUP: Final = "15m"
"""What prometheus-operator gives a server to start: 60 failures, every 15 s."""
_CORES_MAX: Final = 1024
_COLORS: Final = {"error": "red", "warning": "yellow", "hint": "cyan"}


class Source(NamedTuple):
    """What was read: the folder of a database, a running server, or both."""

    folder: Folder | None
    server: ServerState | None

    def sizes(self) -> dict[str, ReplaySize]:
        """Return sizes of replays by name. The last one is the largest."""
        from muster.telemetry.replay.model import size_of

        found = {}
        if self.folder is not None:
            found["now"] = size_of(self.folder.counts)
        elif self.server is not None:
            found["now"] = self.server.now
        if self.server is not None:
            found["longest log"] = self.server.worst
        return found


@click.command("replay")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@server_options(required=False)
@click.option(
    "--cores",
    type=click.FloatRange(0.05, _CORES_MAX),
    callback=finite,
    help="CPU limit of the server (its GOMAXPROCS).",
)
@click.option("--memory-limit", default="", metavar="BYTES", callback=not_empty, help="Its memory limit, as in 8Gi.")
@click.option(
    "--startup-limit", default=_STARTUP, show_default=True, metavar="DURATION", help="What its startup probe allows."
)
@click.option("--calibration", type=click.Path(path_type=Path, dir_okay=False), help="File with a calibration.")
@click.option("--same-machine", is_flag=True, help="The calibration was made on such a machine as the server's.")
@click.option("--calibrate", is_flag=True, help="Write the file: measure this machine, or a server's last restart.")
@click.option("--binary", default="", metavar="PATH", callback=not_empty, help="Prometheus to calibrate with.")
@click.option(
    "--series",
    type=click.IntRange(SERIES_LEAST, SERIES_MOST),
    help="Series of the largest log of a calibration.  [default: those of FOLDER, or 120000]",
)
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Replays; the fastest counts."
)
@output_option("json", "yaml")
def command(
    folder: Path | None,
    server: ServerOptions,
    cores: float | None,
    memory_limit: str,
    startup_limit: str,
    calibration: Path | None,
    same_machine: bool,
    calibrate: bool,
    binary: str,
    series: int | None,
    repeats: int,
    output: str,
) -> int:
    """Predict how long Prometheus replays its log when it starts, and the peak of its memory.

    FOLDER is that of its database (--storage.tsdb.path); it is only read. With --prometheus the running server is
    asked. With both, the log is that of the folder, and the rest is the server's.

    A calibration makes predictions more exact. With --calibrate this command starts a Prometheus server in a temporary
    folder, and measures its replays. With FOLDER it makes logs with as many series as that one, which takes longer.
    With --calibrate and --prometheus it uses the last restart of that server.

    Exit status: 0, or 1 if the server would not come back by itself.
    """
    if calibrate:
        if calibration is None:
            raise BadInput("--calibrate writes a file", "name it with --calibration FILE")
        return calibrate_into(calibration, server, Work(binary, series, folder, repeats), cores, output)
    if binary:
        raise BadInput("--binary has an effect only with --calibrate", "leave it out")
    if folder is None and not server.url:
        raise BadInput("there is nothing to predict", "name the folder of a database, or a server with --prometheus")
    limit_bytes, startup_s = _bytes(memory_limit), _seconds(startup_limit)
    loaded = _load(calibration) if calibration else None
    source = _read(folder, server, output)
    settings = _settings(source, cores, limit_bytes, startup_s)
    trust = _trust(loaded, source, same_machine)
    return _report(source, settings, loaded, trust, output)


def _trust_in(size: ReplaySize, loaded: Calibration | None, trust: Trust) -> Trust:
    """Return how far a prediction for a size can be trusted: less if the calibration does not cover it."""
    from muster.telemetry.replay.coverage import outside

    beyond = loaded is not None and trust == "calibrated" and outside(size, loaded.covers)
    return "extrapolated" if beyond else trust


def _report(source: Source, settings: Settings, loaded: Calibration | None, trust: Trust, output: str) -> int:
    from muster.telemetry.replay.advice import advise, after_snapshot
    from muster.telemetry.replay.defaults import DEFAULT
    from muster.telemetry.replay.model import predict

    coefficients = loaded.coefficients if loaded else DEFAULT
    sizes = source.sizes()
    trusts = {name: _trust_in(size, loaded, trust) for name, size in sizes.items()}
    predictions = {
        name: predict(size, settings.usable_cores, coefficients, trusts[name]) for name, size in sizes.items()
    }
    clean = {}
    if settings.snapshot:
        clean = {name: after_snapshot(size, settings, coefficients, trusts[name]) for name, size in sizes.items()}
    damage = source.folder.damage if source.folder else None
    advice = advise(list(sizes.values())[-1], settings, coefficients, list(trusts.values())[-1], damage)
    if output:
        from msgspec import to_builtins

        data = {
            "sizes": sizes,
            "predictions": predictions,
            "clean_restarts": clean,
            "trust": trusts,
            "settings": settings,
            "advice": advice,
            "folder": source.folder,
            "server": source.server,
        }
        print_data(to_builtins(data), output)
    else:
        _print(sizes, predictions, clean, settings, advice)
        for each in _notes(source, loaded, trust):
            note(each)
        for each in _extrapolations(sizes, loaded, trusts):
            note(each)
    return ExitCode.FAILED if any(each.severity == "error" for each in advice) else ExitCode.DONE


def _print(
    sizes: dict[str, ReplaySize],
    predictions: dict[str, Prediction],
    clean: dict[str, Prediction],
    settings: Settings,
    advice: list[Advice],
) -> None:
    rows = [
        ["series", *(f"{size.series:,}" for size in sizes.values())],
        ["samples in the log", *(f"{size.samples:,}" for size in sizes.values())],
        ["log on disk", *(amount(size.stored_bytes, "bytes") for size in sizes.values())],
        ["replay", *map(_range, predictions.values())],
        [
            "peak memory",
            *(
                f"{amount(each.peak_memory_bytes, 'bytes')} (up to {amount(each.most_memory_bytes, 'bytes')})"
                for each in predictions.values()
            ),
        ],
    ]
    if clean:
        rows.insert(4, ["replay after a clean shutdown", *map(_range, clean.values())])
    print_table([f"WITH {settings.usable_cores:g} CORES", *(name.upper() for name in sizes)], rows)
    for each in advice:
        click.echo()
        say(each.message, head=paint(each.severity, _COLORS[each.severity], bold=True) + ": ", hang=2)
        effects = []
        if each.time_s is not None:
            effects.append(f"replay {_time(each.time_s)}")
        if each.peak_memory_bytes is not None:
            effects.append(f"peak memory {amount(each.peak_memory_bytes, 'bytes')}")
        if effects:
            where = "" if each.applies == "every start" else " (after a clean shutdown only)"
            say(f"then: {', '.join(effects)}{where}", head="  ")


def _range(prediction: Prediction) -> str:
    return f"{_time(prediction.time_s)} (up to {_time(prediction.longest_s)})"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def _notes(source: Source, loaded: Calibration | None, trust: Trust) -> list[str]:
    found = list(source.server.notes) if source.server else []
    if source.folder is not None:
        if source.folder.growing:
            found.append("a server writes to the folder: the figures are those of the moment")
        if source.folder.partly_read:
            found.append("the log is long: only every n-th segment was read, and the rest is an estimate")
    if trust == "elsewhere":
        why = "there is no calibration" if loaded is None else "the calibration is of another machine or version"
        found.append(
            f"{why}, so the figures may be wrong by a factor of 2; `--calibrate` on such a machine makes them better"
        )
    return found


def _extrapolations(sizes: dict[str, ReplaySize], loaded: Calibration | None, trusts: dict[str, Trust]) -> list[str]:
    from muster.telemetry.replay.coverage import outside
    from muster.telemetry.replay.model import FACTORS

    factor = FACTORS["extrapolated"]
    return [
        f"{name}: the calibration does not cover {' and '.join(outside(size, loaded.covers))}, so the figures are "
        f"extrapolated and may be wrong by a factor of {factor:g}; `--calibrate` with a folder measures near its size"
        for name, size in sizes.items()
        if loaded is not None and trusts[name] == "extrapolated"
    ]


def _settings(source: Source, cores: float | None, limit_bytes: int, startup_s: float) -> Settings:
    from muster.telemetry.replay.advice import Settings

    server = source.server
    gomaxprocs = server.gomaxprocs if server else 0
    return Settings(
        cores=cores or gomaxprocs or cores_here(),
        gomaxprocs=gomaxprocs,
        memory_limit_bytes=limit_bytes or (server.memory_limit_bytes if server else 0),
        memory_bytes=server.memory_bytes if server else 0,
        startup_limit_s=startup_s,
        snapshot=server.snapshot if server else None,
        version=server.version if server else "",
    )


def _trust(loaded: Calibration | None, source: Source, same_machine: bool) -> Trust:
    """Return whether the calibration is that of the server's machine and version."""
    from muster.telemetry.replay.calibration import this_machine

    if loaded is None:
        if same_machine:
            raise BadInput("--same-machine says something about a calibration", "add --calibration FILE")
        return "elsewhere"
    if source.server is not None and loaded.version and source.server.version != loaded.version:
        return "elsewhere"
    if loaded.origin == "restart":
        return "calibrated" if source.server is not None and source.server.url == loaded.server else "elsewhere"
    here = source.server is None and loaded.machine == this_machine()
    return "calibrated" if same_machine or here else "elsewhere"


def _read(folder: Path | None, server: ServerOptions, output: str) -> Source:
    found = None
    if folder is not None:
        with stages(f"reading {folder}", output) as stage:
            found = read_log(folder, in_percent(stage))
    state = run(_ask(server)) if server.url else None
    return Source(found, state)


async def _ask(server: ServerOptions) -> ServerState:
    from muster.telemetry.replay.serversize import read_server

    async with server.client() as client:
        return await read_server(client)


def _load(file: Path) -> Calibration:
    from muster.telemetry.replay.calibration import BadCalibration, load_calibration

    try:
        return load_calibration(file)
    except BadCalibration as error:
        raise BadInput(str(error)) from error


def _bytes(text: str) -> int:
    from muster.kube.objects.quantity import parse_quantity

    if not text:
        return 0
    try:
        found = parse_quantity(text)
    except ValueError:
        found = Fraction(0)
    if found <= 0:
        raise BadInput(f"--memory-limit {text!r} is not a quantity of bytes", "write it as 8Gi or 8000000000")
    return int(found)


def _seconds(text: str) -> float:
    from muster.telemetry.prometheus.durations import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise BadInput(f"--startup-limit: {error}") from error
