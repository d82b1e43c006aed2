"""Mistakes that a user can mend."""


class UserError(ValueError):
    """Wrong input: one sentence that names the file or key and says what to do.

    The command line prints the sentence and exits with code 2, without a traceback.
    """


NO_GPU_MEMORY = "The GPU's memory does not suffice"
"""How a run says so; who runs several at once listens for it."""
