"""A batch of erasures, or an append, from resolving its rows to purging them: one stage per module."""
