"""The dashboards, a module for each."""
