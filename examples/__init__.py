"""Scripts to copy from. They use no code of the service."""
