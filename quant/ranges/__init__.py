"""What activations hold, and which real numbers their integers stand for."""
