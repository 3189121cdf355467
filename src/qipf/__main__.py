"""python -m qipf: the command line."""

from qipf.cli import main

main()
