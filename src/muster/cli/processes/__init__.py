"""What a cluster runs: `muster controller` and `muster admission`."""
