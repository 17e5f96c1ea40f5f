"""The client's side: what its operator allows, what it remembers, and what it answers; what `bifl client` does."""
