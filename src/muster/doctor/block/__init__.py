"""Blocks one account at the API server for a time: its requests get a priority level without shares."""
