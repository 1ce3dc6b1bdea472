"""Webhooks: endpoints of your own systems that receive signed messages."""
