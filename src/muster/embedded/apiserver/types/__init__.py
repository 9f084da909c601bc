"""The kinds that the server knows, their fields, defaults and rules."""
