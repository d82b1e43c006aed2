"""Training: the trainer with its loader, step, evaluation, checkpoints and loggers."""
