"""The controller's server for reports of supervisors and training programs."""
