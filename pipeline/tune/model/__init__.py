"""What is predicted: points of the space, and a bottleneck model that says how fast each would be."""
