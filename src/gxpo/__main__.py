"""`python -m gxpo`: the command line."""

from gxpo.cli import main

if __name__ == "__main__":
    main()
