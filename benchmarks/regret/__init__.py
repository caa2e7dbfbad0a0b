"""Whether what the tuner chooses is within 3% of the best of a recorded grid, in a tenth of the grid's time."""
