"""The decoder and how its weights are read."""
