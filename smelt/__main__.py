"""`python -m smelt`."""

from smelt.cli import main

main()
