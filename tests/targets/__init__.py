"""What is known of processors."""
