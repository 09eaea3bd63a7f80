"""Code generation: passes, schedule, arena, kernels and the project writer."""
