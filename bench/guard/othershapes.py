"""Series of other shapes than those of `tests.support.manyseries`, to check prices that were not fitted to them.

Label values are long, short and in other scripts. Metrics share no label, and histograms have other sizes. Values have
many digits or one. Some series ended before the newest samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

MODELS = ("llama-70b-instruct", "größe-北京-модель", "m", "a-model-with-a-long-name/" + "x" * 60)
_ROUTES = tuple(f"/v1/tenants/{{tenant}}/deployments/{{deployment}}/revisions/{number}/predict" for number in range(60))
_CODES = ("200", "404", "429", "500")
_REGIONS = ("eu-west-1", "us-east-2", "ap-south-1")
_BOUNDS = (*(f"{0.0001 * 1.5**number:.6f}" for number in range(29)), "+Inf")
_TAIL = "@V@T"


def lasting() -> bytes:
    """The page of series that last: about 25,000."""
    numbers = random.Random(17)
    lines = [
        *_requests(numbers),
        *_infos(numbers),
        *_short(),
        *_latencies("queue_latency_seconds", numbers),
        *_loose(numbers),
        *_devices(),
    ]
    return "\n".join(lines).encode() + b"\n"


def passing(generation: int) -> bytes:
    """The page of series that are replaced: 1,500 each time."""
    return (
        "\n".join(
            f'batch_task_rows{{task="load-{generation}-{number:05d}",kind="{number % 7}"}} {number}{_TAIL}'
            for number in range(1500)
        ).encode()
        + b"\n"
    )


def histograms() -> bytes:
    """The page of histograms that a server stores as native ones."""
    return (
        "\n".join(
            ["# TYPE native_latency_seconds histogram", *_latencies("native_latency_seconds", random.Random(5))]
        ).encode()
        + b"\n"
    )


def _requests(numbers: random.Random) -> Iterator[str]:
    for route in _ROUTES:
        for code in _CODES:
            for model in MODELS:
                for region in _REGIONS:
                    labels = f'route="{route}",code="{code}",model="{model}",region="{region}"'
                    yield f"inference_requests_total{{{labels}}} {numbers.randrange(10**7)}{_TAIL}"


def _infos(numbers: random.Random) -> Iterator[str]:
    for number in range(1500):
        digest = f"{numbers.getrandbits(256):064x}"
        image = f"registry.example/platform/training/runtime/cuda-12.4/python-3.11:sha256-{digest}"
        annotations = ",".join(f'annotation_{key}="{numbers.getrandbits(120):030x}"' for key in "abcdefgh")
        yield f'workload_info{{uid="{numbers.getrandbits(128):032x}",image="{image}",{annotations}}} 1@T'
        yield f'workload_gpu_share{{uid="{number}",shard="{number % 50}"}} {numbers.random():.15f}@T'


def _short() -> Iterator[str]:
    for number in range(6000):
        yield f'q{{i="{number}",s="{number % 3}"}} {number % 10}@T'


def _latencies(name: str, numbers: random.Random) -> Iterator[str]:
    for number in range(120):
        labels = f'queue="q{number}",shard="{number % 4}"'
        for rank, bound in enumerate(_BOUNDS):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {rank + 1}{_TAIL}'
        yield f"{name}_sum{{{labels}}} {numbers.random() * 1000:.9f}@T"
        yield f"{name}_count{{{labels}}} {len(_BOUNDS)}{_TAIL}"


def _loose(numbers: random.Random) -> Iterator[str]:
    """Metrics that share no label."""
    for number in range(300):
        for value in range(12):
            yield f'loose_{number}_total{{own_{number}="v{value}"}} {numbers.randrange(1000)}{_TAIL}'


def _devices() -> Iterator[str]:
    for node in range(200):
        for device in range(8):
            labels = f'node="n{node}.rack-{node // 20}.site.example",device="{device}",vendor="nvidia"'
            yield f"device_power_watts{{{labels}}} {300 + device}.5{device}@T"
            yield f"device_errors_total{{{labels}}} 0@T"
