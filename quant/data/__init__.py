"""Calibration data: read from folders of images, sounds and arrays, and checked.

May import `quant.ranges` and `ir`; `quant`, `api` and `cli` may import it.
"""
