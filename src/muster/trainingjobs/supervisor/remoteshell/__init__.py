"""Commands of mpiexec for this node: the remote shell of our own, and the image's sshd."""
