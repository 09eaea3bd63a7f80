"""What backends share: pools, requantization, assembly written in Python."""
