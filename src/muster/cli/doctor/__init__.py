"""`muster doctor`: shows what endangers the control plane."""
