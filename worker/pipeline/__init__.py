"""One erasure batch, from sealed to published: one stage per file."""
