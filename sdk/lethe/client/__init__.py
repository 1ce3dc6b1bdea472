"""The HTTP client behind `lethe.Lethe` and `lethe.AsyncLethe`."""
