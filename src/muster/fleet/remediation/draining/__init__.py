"""Drains of nodes: plans, budgets and evictions."""
