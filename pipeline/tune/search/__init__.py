"""Which settings are tried, round by round, and which of them is chosen."""
