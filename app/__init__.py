"""The gateway: requests in, status and certificates out. It never imports torch."""
