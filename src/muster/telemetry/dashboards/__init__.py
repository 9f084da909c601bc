"""Grafana dashboards of Muster: written in Python, generated as JSON files of the chart."""
