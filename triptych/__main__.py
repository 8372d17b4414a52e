"""`python -m triptych` is `triptych`."""

from triptych.app.cli import main

if __name__ == "__main__":
    main()
