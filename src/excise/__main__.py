"""`python -m excise`: the program, without the script that installing makes."""

from excise.cli.main import main

main()
