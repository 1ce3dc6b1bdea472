"""Telling the tenant's own systems what happened: Standard Webhooks, thin, signed, at least once."""
