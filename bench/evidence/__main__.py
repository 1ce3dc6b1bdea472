"""`python -m bench.evidence [part …]` runs the named parts, or all."""

import sys

from bench.evidence import PARTS, run

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in PARTS]
    if unknown:
        sys.exit(f"unknown part: {', '.join(unknown)}. Available: {', '.join(PARTS)}")
    run(sys.argv[1:])
