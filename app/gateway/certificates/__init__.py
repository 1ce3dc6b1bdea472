"""Certificates, public keys and the certificate log."""
