"""The conversations of agents: from records to logs on disk."""
