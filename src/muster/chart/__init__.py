"""The Helm chart: parts generated from the code, and writing it out without a checkout."""
