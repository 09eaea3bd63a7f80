"""Converters of ONNX operators, a file a family; each has a table `CONVERTERS`."""
