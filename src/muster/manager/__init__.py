"""The controllers that work under one lease: what each is given, and how they hear of each other."""
