"""Converters of ONNX operators, a file a family; each has a table `CONVERTERS`.

May import `frontend.onnx`, `ops` and `ir`; `frontend.onnx` may import it.
"""
