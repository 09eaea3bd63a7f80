"""Converters of ONNX operators: one file for each family, each with a table `CONVERTERS`.

May import `frontend.onnx`, `ops` and `ir`; `frontend.onnx` may import it.
"""
