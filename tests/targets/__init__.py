"""Tests of the targets' catalog and of the cycle estimates."""
