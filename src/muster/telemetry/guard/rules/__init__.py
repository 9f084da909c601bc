"""Prices recording and alerting rules, which run inside the server where no guard sees them."""
