"""Failure attribution on Who&When: logs, their corruption and restoration, and who is asked about them."""
