"""Training jobs: gangs that start as one, restart as one, and replace only what broke."""
