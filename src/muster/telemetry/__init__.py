"""Telemetry: a guard in front of Prometheus, hygiene of what is scraped, dashboards, alerts and runbooks of Muster."""
