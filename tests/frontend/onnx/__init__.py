"""ONNX files, judged by ONNX Runtime."""
