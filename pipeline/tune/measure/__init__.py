"""What is measured through a rig: memory, rates of the parts, epoch boundaries, the held run."""
