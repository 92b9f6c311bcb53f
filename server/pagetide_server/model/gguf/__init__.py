"""GGUF files: reading them, and turning them into an ordinary model folder."""
