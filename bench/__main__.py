"""`python -m bench [part …]` runs every part, or those named, then writes the figures and docs/results.md.

BENCH=full runs the long versions.
"""

import importlib
import sys

from bench.archives import DatasetUnavailable

PARTS = {
    "engine": "bench.engine",
    "gateway": "bench.gateway",
    "scale": "bench.scale",
    "latency": "bench.latency",
    "networks": "bench.networks",
    "ranks": "bench.ranks",
    "evidence": "bench.evidence",
    "paper": "bench.paper_examples",
    "representations": "bench.representation_service",
    "linearised": "bench.linearised",
}


def main(names: list[str]) -> int:
    """Run the named parts, or all, and return an exit code."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"unknown part: {', '.join(unknown)}. Available: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in names or PARTS:
        try:
            importlib.import_module(PARTS[name]).run()
        except DatasetUnavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    importlib.import_module("bench.figures").draw()
    importlib.import_module("bench.results_page").write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
