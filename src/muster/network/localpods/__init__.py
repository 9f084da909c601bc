"""The pods of this node: who they are, their cgroups, and their interfaces on the host."""
