"""Assigns nodes to teams, and tracks borrowing between teams."""
