"""The program `muster network agent`: one process per node that runs the parts of the network that are on."""
