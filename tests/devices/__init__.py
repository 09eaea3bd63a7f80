"""Real and simulated boards: images, flashing, the wire, firmware."""
