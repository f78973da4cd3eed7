"""Audits over the network, and the gateway that names the agent of a request."""
