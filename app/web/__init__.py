"""The dashboard: pages over the same services, guard and tenants as the API, and nothing the API hides."""
