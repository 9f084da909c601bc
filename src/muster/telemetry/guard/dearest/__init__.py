"""A bounded log of the dearest queries, with the dashboard and panel that sent them."""
