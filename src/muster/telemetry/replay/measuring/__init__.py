"""Calibration: a real Prometheus in a temporary folder writes logs of known size, is killed, and replays them."""
