"""The pages a reader follows: their examples run, their links lead somewhere, nothing is left out."""
