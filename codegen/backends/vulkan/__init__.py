"""Backend `vulkan`: compute shaders for GPUs; tensors lie in memory as the CPU has them.

As an accelerator it stands above what asks it.
May import `codegen`, `targets`, `ops` and `ir`; `bench` may import it.
"""
