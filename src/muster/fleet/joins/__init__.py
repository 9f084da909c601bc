"""Gradual joins: new nodes become schedulable no faster than the API server can take."""
