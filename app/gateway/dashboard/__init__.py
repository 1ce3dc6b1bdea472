"""The dashboard: HTML pages on top of the API's own services, permissions and tenant boundaries."""
