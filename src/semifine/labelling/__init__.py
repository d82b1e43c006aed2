"""Labels that people give: a log that only grows, and what it says by now. Needs the standard library alone."""
