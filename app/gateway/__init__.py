"""The HTTP side of the service: the API with one folder per noun, the dashboard, and the metrics."""
