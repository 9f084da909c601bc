"""Which team owns which nodes, and who runs on nodes of others."""
