"""Alerts about Muster itself, their thresholds, and the files of rules and runbook pages written from them."""
