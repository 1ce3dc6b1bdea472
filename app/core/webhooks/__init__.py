"""Sending a webhook: the allowed targets, the signature of a message, and the HTTP request."""
