"""One tune on several ranks: they begin and end each piece of work together, and rank 0 decides."""
