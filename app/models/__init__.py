"""Models: manifest, data, registration."""
