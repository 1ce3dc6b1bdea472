"""`python -m lethe.cli` runs the `lethe` command. The service starts its own processes this way."""

from lethe.cli.main import main

if __name__ == "__main__":
    main()
