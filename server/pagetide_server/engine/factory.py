"""Builds an EngineCore from an EngineConfig: the one place that joins scheduler, model and sampler."""
