"""The certificate format, its privacy arithmetic, the certificate log, and offline verification.

Needs only the standard library, pydantic and cryptography.
"""
