"""Tests of int8 divisions by a division instruction."""
