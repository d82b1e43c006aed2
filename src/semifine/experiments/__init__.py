"""The paper's comparison: recipes of one or several training runs, and the tables they fill."""
