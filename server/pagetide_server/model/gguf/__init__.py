"""GGUF files: reading them, and turning them into an ordinary model folder.

Does not belong here: where files are found and kept (`checkpoint/`), and running a network.
"""
