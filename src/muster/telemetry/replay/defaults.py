"""Coefficients without a calibration."""

from __future__ import annotations

from typing import Final

from muster.telemetry.replay.model import Coefficients

DEFAULT: Final = Coefficients(
    fixed_s=0.01,
    series_serial_s=1.75e-6,
    series_parallel_s=8.0e-7,
    label_serial_s=1.1e-7,
    pair_serial_s=1.0e-6,
    sample_serial_s=2.0e-8,
    sample_parallel_s=1.9e-7,
    mapped_serial_s=8.0e-8,
    mapped_parallel_s=3.0e-8,
    fixed_bytes=7.5e7,
    series_bytes=850.0,
    label_bytes=27.0,
    label_factor=1.4,
    pair_bytes=250.0,
    sample_bytes=8.5,
)
"""Between those of Prometheus 2.42 and 3.16 on two cores of a virtual machine (docs/telemetry.md has the figures).

They were fitted to 13 logs of each, on a quiet machine, and then raised by about a sixth. They are 0.75 to 1.72 times
the real times and 0.73 to 1.40 times the real peaks of memory: too high is the safer side. Series have the shares of
serial and parallel work of earlier measurements with one core and with two. Samples have those of a profile of 3.16.
"""
