"""The command line: `muster` and, as a kubectl plugin, `kubectl muster`."""
