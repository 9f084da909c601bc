"""Training jobs: gangs that start and restart as a whole, and replace only broken pods."""
