"""API keys, scopes, tenants."""
