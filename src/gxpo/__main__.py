"""`python -m gxpo`: the command line."""

from gxpo.cli.app import main

if __name__ == "__main__":
    main()
