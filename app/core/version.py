"""The version of the service."""

from importlib.metadata import version

VERSION = version("lethe-unlearning-service")
