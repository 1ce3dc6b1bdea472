"""API keys, scopes and tenants."""
