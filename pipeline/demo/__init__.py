"""What the demo needs and nothing else does: photo-like images, made on the spot."""
