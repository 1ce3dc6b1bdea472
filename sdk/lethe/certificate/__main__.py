"""Runs the verifier: `python -m lethe.certificate`."""

import sys

from lethe.certificate.cli import main

if __name__ == "__main__":
    sys.exit(main())
