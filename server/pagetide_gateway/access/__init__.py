"""API keys: who may ask, how much, and where the keys are read from."""
