"""What the measurements say: verdict, what binds, and what to do next."""
