"""How attention reaches the KV pool in a decode step."""
