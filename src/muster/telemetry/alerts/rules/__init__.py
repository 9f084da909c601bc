"""The alerts, a module for each file of rules."""
