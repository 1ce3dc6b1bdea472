"""One job on several ranks: rank 0 decides everything, and every rank sums over its shard of the rows."""
