"""`python -m wellfed.pipeline`: the command line without an installed script."""

from .cli.start import main

if __name__ == "__main__":
    main()
