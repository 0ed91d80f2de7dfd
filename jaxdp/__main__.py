"""`python -m jaxdp`: the command line, where its script isn't on the path."""

from .cli import main

if __name__ == "__main__":
    main()
