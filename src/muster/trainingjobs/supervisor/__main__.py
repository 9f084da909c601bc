"""`python -m muster.trainingjobs.supervisor`."""

from .main import run_and_exit

run_and_exit()
