"""Inputs that show which metrics are read: dashboards, rules, query logs, other consumers."""
