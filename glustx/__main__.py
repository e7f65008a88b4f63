"""`python -m glustx` is the command `glustx`."""

from glustx.cli.main import main

if __name__ == "__main__":
    main()
