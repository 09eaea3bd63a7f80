"""Backend `vulkan`: compute shaders for GPUs; tensors lie in memory as the CPU has them.

It implements `codegen.accelerator`. May import that and what stands below it; `bench` may import it.
"""
