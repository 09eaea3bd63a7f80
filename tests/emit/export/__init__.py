"""Networks as libraries for other build systems."""
