"""Calibration data: read from folders of images, sounds and arrays, and checked.

May import `ir`; `quant`, `api` and `cli` may import it.
"""
