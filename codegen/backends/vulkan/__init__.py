"""Backend `vulkan`: compute shaders for GPUs; tensors lie in memory as the CPU has them."""
