"""One job on several ranks: rank 0 leads and decides, the others add up their share of the rows."""
