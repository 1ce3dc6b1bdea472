"""The worker: takes a sealed batch and publishes a certified model."""
