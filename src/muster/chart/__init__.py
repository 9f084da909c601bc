"""The Helm chart: what is generated of it from the code, and writing it out where there is no checkout."""
