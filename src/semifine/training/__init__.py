"""Training: the loop, schedules, averaging, checkpoints, evaluation. The only room that knows Fabric."""
