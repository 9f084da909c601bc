"""Where supervisors and programs report to the controller."""
