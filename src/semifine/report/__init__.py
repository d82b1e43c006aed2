"""Reports of finished runs, each a self-contained HTML file."""

from semifine.report.page import write_page

__all__ = ["write_page"]
