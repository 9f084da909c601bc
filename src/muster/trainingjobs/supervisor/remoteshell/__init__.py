"""Runs mpiexec's commands on this node: our own remote shell, and the image's sshd."""
