"""The figures of the paper for any runs, as PNG and PDF files."""

from semifine.report.figures.gallery import write_figures

__all__ = ["write_figures"]
