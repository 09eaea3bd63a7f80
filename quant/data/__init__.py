"""Calibration data: read from folders of images, sounds and arrays, and checked."""
