"""The experiments of the paper: recipes of one or several training runs, and tables of their results."""
