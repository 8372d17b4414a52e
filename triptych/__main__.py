"""Entry point of `python -m triptych`, the same as the command `triptych`."""

from triptych.app.cli import main

if __name__ == "__main__":
    main()
