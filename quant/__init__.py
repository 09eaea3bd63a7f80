"""Post-training quantization: converts a float Graph and calibration data to a quantized Graph.

May import `ops` and `ir`; `api`, `cli` and `bench` may import it.
"""
