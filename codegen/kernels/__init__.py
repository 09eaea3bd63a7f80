"""Which kernel serves a node, at what cost, with which scratch and packed constants."""
