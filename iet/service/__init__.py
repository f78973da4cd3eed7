"""Audits over HTTP and as tools of agents, and the gateway that names the agent of a request."""
