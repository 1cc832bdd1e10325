"""``python -m rollferry.cli``."""

from __future__ import annotations

from rollferry.cli import app

if __name__ == "__main__":
    app(prog_name="rollferry")
