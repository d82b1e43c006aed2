"""Sections of the report: the data of each, beside its template."""
