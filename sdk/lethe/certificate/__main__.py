"""`python -m certificate`."""

import sys

from certificate.cli import main

if __name__ == "__main__":
    sys.exit(main())
