"""`muster telemetry`: what is used, what grows, and how long a restart of Prometheus takes."""
