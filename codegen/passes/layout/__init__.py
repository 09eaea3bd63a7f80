"""The order in which memory holds the elements of a tensor: transposes and reshapes that cancel."""
