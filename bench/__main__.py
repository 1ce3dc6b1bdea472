"""`python -m bench [part …]`: every part, or those named; then the figures and docs/results.md.

BENCH=full for the long ones.
"""

import importlib
import sys

from bench.datasets import DatasetUnavailable

PARTS = {
    "engine": "bench.engine",
    "gateway": "bench.gateway",
    "networks": "bench.networks",
    "ranks": "bench.ranks",
    "evidence": "bench.evidence",
    "paper": "bench.paper_examples",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}", file=sys.stderr)
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
