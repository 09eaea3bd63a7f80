"""List of the packages: the folders beside this file become modules of `smelt` (pyproject.toml)."""

from setuptools import find_packages, setup

FOLDERS = ("smelt", "boards", "codegen", "frontend", "quant", "targets")

found = find_packages(include=[name for folder in FOLDERS for name in (folder, f"{folder}.*")])
packages = {name if name.split(".")[0] == "smelt" else f"smelt.{name}" for name in found}
setup(packages=sorted({*packages, "smelt.templates"}))
