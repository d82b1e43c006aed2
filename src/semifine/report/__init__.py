"""Pages about finished runs: one HTML file that needs nothing else."""

from semifine.report.page import write_page

__all__ = ["write_page"]
