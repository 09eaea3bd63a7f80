"""Tests of benchmarks. (A folder called `bench` here would hide the package of that name.)"""
