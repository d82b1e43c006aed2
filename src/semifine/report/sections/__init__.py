"""Sections of the report. Each module contains the data and the template of its section."""
