"""From a graph to steps."""
